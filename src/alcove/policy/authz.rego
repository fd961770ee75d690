# Who may read, write, import or delete one memory. The answer is `decision`; undefined means denied.
package memories.authz

default decision := {"allow": false, "reason": "this namespace is not yours, and nothing grants it to you"}

# A direct call may use rooms that its user owns. For an agent, only grants count, not ownership,
# so that an agent acting for a user never uses another agent's room for the same user.
decision := {"allow": true} if {
	input.context.agent == null
	input.namespace[0] == "user"
	input.namespace[1] == input.context.user_id
} else := {"allow": true} if {
	input.context.agent == null
	owner == input.context.user_id
} else := {"allow": true} if {
	# A grant allows its room and everything below it, but never rooms of other users.
	some grant in input.context.grants
	not grant.written_by
	operation in grant.operations
	array.slice(input.namespace, 0, count(grant.namespace)) == grant.namespace
	not foreign
} else := {"allow": true} if {
	# An admin may import memories into any room, as a migration does; others where they may write.
	input.operation == "import"
	is_admin
}

operation := "write" if input.operation == "import"

operation := input.operation if input.operation != "import"

# Only a list of strings counts as roles, and an agent never inherits its user's roles.
is_admin if {
	input.context.agent == null
	is_array(input.context.jwt_claims.roles)
	every role in input.context.jwt_claims.roles { is_string(role) }
	"admin" in input.context.jwt_claims.roles
}

foreign if owner != input.context.user_id

# Under the root `user` the owner is the second segment; elsewhere the one after the first `u`.
owner := input.namespace[1] if input.namespace[0] == "user"

owner := input.namespace[i + 1] if {
	input.namespace[0] != "user"
	i := min([j | some j; input.namespace[j] == "u"])
}
