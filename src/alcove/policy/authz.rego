# Who may read, write or delete one memory. The answer is `decision`; undefined means denied.
package memories.authz

default decision := {"allow": false, "reason": "this namespace is not yours, and nothing grants it to you"}

decision := {"allow": true} if open

# A direct call enters what its user owns. With an agent, ownership opens nothing: only grants do,
# so that an agent acting for a user never enters another agent's room for the same user.
open if {
	input.context.agent == null
	owner == input.context.user_id
}

# A grant opens its room and what lies below it, but never what belongs to somebody else.
open if {
	some grant in input.context.grants
	input.operation in grant.operations
	array.slice(input.namespace, 0, count(grant.namespace)) == grant.namespace
	not foreign
}

foreign if owner != input.context.user_id

# Under the root `user` the second segment owns; elsewhere the one after the first `u`.
owner := input.namespace[1] if input.namespace[0] == "user"

owner := input.namespace[i + 1] if {
	input.namespace[0] != "user"
	i := min([j | some j, segment in input.namespace; segment == "u"])
}
