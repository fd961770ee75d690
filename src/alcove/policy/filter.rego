# Where a search, a list or an event reader may look. `namespace_prefix` and `attribute_filter` must
# both be defined, or the call is denied. `owner` excludes rooms of other users; `written_by`, a list,
# excludes what other authors wrote (null means no author); `unowned_written_by` does the same, but
# only in rooms without an owner.
package memories.filter

# An admin's prefix is always used as it is.
namespace_prefix := input.namespace_prefix if is_admin

# Other prefixes are used if they are inside rooms that the caller owns or has a grant for ...
namespace_prefix := input.namespace_prefix if {
	not is_admin
	inside
}

# ... and are replaced by the caller's own subtree if they are not.
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

# In rooms without an owner, a grant with authors allows only what they wrote, unless another grant allows everything.
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

# Only a list of strings counts as roles, and an agent never inherits its user's roles.
is_admin if {
	input.context.agent == null
	is_array(input.context.jwt_claims.roles)
	every role in input.context.jwt_claims.roles { is_string(role) }
	"admin" in input.context.jwt_claims.roles
}
