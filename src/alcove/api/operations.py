"""The tables of operations. One entry here and one method of the service are all that an operation needs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from alcove.api import forms
from alcove.api.operation import Operation
from alcove.store.admin import Admin

_ADMIN = "/v1/admin"
_USER = f"{_ADMIN}/users/{{user}}"
_Limit = Annotated[int, Meta(ge=1, le=1000)]


class AdminOperations:
    """What operators do. Auditors may call what only reads."""

    held = Operation(Admin.held, f"GET {_USER}", "What is held of a user", role="auditor")
    remove = Operation(
        Admin.remove,
        f"DELETE {_USER}/memories/{{id}}",
        "Take one memory away, audited",
        role="admin",
        errors=(404,),
    )
    wipe = Operation(
        Admin.wipe,
        f"POST {_USER}/wipe",
        "Erase a user",
        role="admin",
        defaults={"wait": False},
        errors=(404,),
        unhurried=True,
    )
    verify_receipt = Operation(
        Admin.verify_receipt,
        f"POST {_ADMIN}/receipts/verify",
        "Whether the ledger has the wipe that a receipt is of",
        role="auditor",
        types={"receipt": dict[str, Any]},
        within="verified",
    )
    policies = Operation(Admin.policies, f"GET {_ADMIN}/policies", "The policies in force", role="auditor")
    put_policies = Operation(
        Admin.put_policies,
        f"PUT {_ADMIN}/policies",
        "Put policies in force in every worker",
        role="admin",
        mapping=("texts", forms.PolicyTexts),
    )
    test_policies = Operation(
        Admin.test_policies,
        f"POST {_ADMIN}/policies/test",
        "Ask policies without a consequence",
        role="admin",
        names={"question": "input"},
        types={"question": dict[str, Any]},
        mapping=("texts", forms.PolicyTexts),
        answer=forms.PolicyAnswers,
    )
    index = Operation(Admin.index, f"GET {_ADMIN}/index", "How far indexing has come", role="auditor")
    trigger_index = Operation(
        Admin.trigger_index, f"POST {_ADMIN}/index/trigger", "Index what waits or was parked", role="admin"
    )
    keys = Operation(Admin.keys, f"GET {_ADMIN}/keys", "The key-encryption keys in use", role="auditor")
    settings = Operation(
        Admin.settings,
        f"GET {_ADMIN}/settings",
        "Retention and limits",
        role="auditor",
        answer=forms.SettingsInForce,
    )
    put_settings = Operation(
        Admin.put_settings,
        f"PUT {_ADMIN}/settings",
        "Change retention and limits",
        role="admin",
        mapping=("changes", forms.SettingsChanges),
        answer=forms.SettingsInForce,
    )
    stats = Operation(Admin.stats, f"GET {_ADMIN}/stats", "How much there is", role="auditor")
    audit = Operation(
        Admin.audit,
        f"GET {_ADMIN}/audit",
        "Who operated on what, newest first",
        role="auditor",
        types={"limit": _Limit},
    )
