# Where a search, a list or an event reader may look. `namespace_prefix` and `attribute_filter` must
# both be defined, or the call is denied. With `owner`, rooms that belong to anybody else are left out,
# with `written_by`, a list, what others wrote (null is nobody), and with `unowned_written_by` what others
# wrote in rooms that belong to nobody.
package memories.filter

# An admin's prefix is kept, whatever it is.
namespace_prefix := input.namespace_prefix if is_admin

# Anybody else's is kept where it lies inside what they own or are granted ...
namespace_prefix := input.namespace_prefix if {
	not is_admin
	inside
}

# ... and is replaced by their own subtree where it does not.
namespace_prefix := user_prefix if {
	not is_admin
	not inside
	input.context.agent == null
}

attribute_filter := {} if is_admin

attribute_filter := {} if {
	not is_admin
	inside
	not starts_with(input.namespace_prefix, user_prefix)
}

attribute_filter := {"namespace": "user", "sub": input.context.user_id} if {
	not is_admin
	starts_with(input.namespace_prefix, user_prefix)
}

attribute_filter := {"namespace": "user", "sub": input.context.user_id} if {
	not is_admin
	not inside
}

owner := input.context.user_id if not is_admin

# Of rooms that belong to nobody, a grant for what somebody wrote opens only that, where no other grant opens all.
unowned_written_by := grant.written_by if {
	not is_admin
	not open
	some grant in granting
	grant.written_by
}

inside if open

inside if count(granting) > 0

open if {
	input.context.agent == null
	prefix_owner == input.context.user_id
}

open if {
	some grant in granting
	not grant.written_by
}

granting := [grant |
	some grant in input.context.grants
	"read" in grant.operations
	starts_with(input.namespace_prefix, grant.namespace)
	not foreign
]

foreign if prefix_owner != input.context.user_id

prefix_owner := input.namespace_prefix[1] if input.namespace_prefix[0] == "user"

prefix_owner := input.namespace_prefix[i + 1] if {
	input.namespace_prefix[0] != "user"
	i := min([j | some j; input.namespace_prefix[j] == "u"])
}

user_prefix := ["user", input.context.user_id]

starts_with(namespace, prefix) if array.slice(namespace, 0, count(prefix)) == prefix

# Only a list of strings carries roles, and an agent never inherits its user's.
is_admin if {
	input.context.agent == null
	is_array(input.context.jwt_claims.roles)
	every role in input.context.jwt_claims.roles { is_string(role) }
	"admin" in input.context.jwt_claims.roles
}
