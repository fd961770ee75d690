"""The tables of operations. One entry here and one method of the service are all that an operation needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from alcove.api import messages
from alcove.api.operation import Operation, Streaming
from alcove.core import validation
from alcove.core.errors import AlcoveError
from alcove.core.filters import filter_to_json
from alcove.core.namespace import Namespace
from alcove.core.records import BatchOperation as Write
from alcove.store.access import Access
from alcove.store.admin import Admin
from alcove.store.overview import Overview
from alcove.store.personal_data import PersonalDataReader
from alcove.store.reader import Reader
from alcove.store.searcher import Searcher
from alcove.store.timeline import Timeline
from alcove.store.wipe import Wiper
from alcove.store.writer import Writer
from alcove.upkeep.doctor import Doctor

NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
_AT = "/v1/memories"
_NS = {"namespace": "ns", "prefix": "ns"}
_PREFIX = {"prefix": "namespace_prefix"}
_KINDS = {"kinds": validation.parse_kinds}
_FILTER = {"filter": filter_to_json}
_EXAMPLE = {"namespace": ["user", "noop", "notes"], "key": "tea"}


def _written(operations: Sequence[Write | Mapping[str, object]]) -> msgspec.Raw:
    """The operations of a batch as a client sends them; an error says which it is about."""
    return msgspec.Raw(
        b"[%b]" % b",".join(_line(*each) for each in enumerate(validation.parse_operations(operations)))
    )


def _line(position: int, write: Write) -> bytes:
    try:
        fields = {name: getattr(write, name) for name in write.__struct_fields__}
        given = {name: value for name, value in fields.items() if value is not None}
        given["namespace"] = [*Namespace.checked(write.namespace)]
        if "index" in given:
            given["index"] = _listed(given["index"])
        lines = {name: msgspec.Raw(validation.encode_json(value, name)) for name, value in given.items()}
        return msgspec.json.encode({"op": type(write).__struct_config__.tag, **lines})
    except AlcoveError as error:
        error.details["operation"] = position
        raise


def _listed(index: Any) -> Any:
    """The paths of an index as JSON has them; whatever else it is as it is."""
    return [*index] if isinstance(index, tuple) else index


class MemoryOperations:
    """Reading and writing memories."""

    TAG = "memories"

    whoami = Operation(Access.whoami, "GET /v1/me", "Who the caller is here")
    put = Operation(
        Writer.put,
        f"PUT {_AT}",
        "Store a memory",
        encoders={"index": _listed},
        extra_errors=(409,),
        quick=True,
        example={**_EXAMPLE, "value": {"likes": "green tea"}, "index": True},
    )
    get = Operation(
        Reader.get,
        f"GET {_AT}",
        "Read a memory",
        renames=_NS,
        not_found="there is no such memory",
        quick=True,
    )
    delete = Operation(
        Writer.delete,
        f"DELETE {_AT}",
        "Delete a memory; absent is fine",
        renames=_NS,
        no_content=True,
        quick=True,
        extra_errors=(409,),
    )
    touch = Operation(
        Writer.touch,
        f"POST {_AT}/touch",
        "Change when a memory expires",
        extra_errors=(404,),
        quick=True,
        example={**_EXAMPLE, "ttl_seconds": 3600},
    )
    search = Operation(
        Searcher.search,
        f"POST {_AT}/search",
        "Find memories",
        renames=_PREFIX,
        defaults={"prefix": msgspec.NODEFAULT},
        encoders=_FILTER,
        answer_field="items",
        extra_errors=(503,),
        read_only=True,
        example={"namespace_prefix": ["user", "noop"], "query": "what to drink", "limit": 5},
    )
    list = Operation(
        Searcher.list,
        f"POST {_AT}/list",
        "List memories without their values",
        renames=_PREFIX,
        encoders=_FILTER,
        answer_field="items",
        read_only=True,
        example={"namespace_prefix": ["user", "noop"], "limit": 20},
    )
    batch = Operation(
        Writer.batch,
        f"POST {_AT}/batch",
        "Many operations in one transaction: all of them or none",
        types={"operations": messages.Operations},
        encoders={"operations": _written},
        answer_record=messages.BatchAnswer,
        extra_errors=(404, 409),
        example={"operations": [{"op": "put", **_EXAMPLE, "value": {"n": 1}}, {"op": "get", **_EXAMPLE}]},
    )
    namespaces = Operation(
        Reader.namespaces,
        f"GET {_AT}/namespaces",
        "List the namespaces that hold something",
        answer_field="namespaces",
    )
    tree = Operation(
        Overview.tree,
        f"GET {_AT}/tree",
        "What lies right below a namespace, with counts",
        renames=_NS,
        answer_field="branches",
    )
    newest = Operation(
        Overview.newest, f"GET {_AT}/newest", "What was written last", renames=_NS, answer_field="items"
    )
    activity = Operation(
        Overview.activity, f"GET {_AT}/activity", "What happened, by day and room and type", renames=_NS
    )
    map = Operation(Overview.map, f"GET {_AT}/map", "Memories laid out by meaning", renames=_NS)
    events = Operation(
        Timeline.events, f"GET {_AT}/events", "Read the timeline", renames=_NS, encoders=_KINDS
    )
    history = Operation(
        Reader.history,
        f"GET {_AT}/history",
        "Every retained version of one memory, newest first",
        renames=_NS,
        answer_field="versions",
    )
    follow = Streaming(
        Timeline.follow,
        f"GET {_AT}/events/stream",
        "Follow the timeline as server-sent events; resumes with Last-Event-ID",
        stream_type=EVENTS,
        renames=_NS,
        encoders=_KINDS,
    )
    export_memories = Streaming(
        Reader.export,
        f"GET {_AT}/export",
        "Every memory the caller may see below a namespace, one a line",
        stream_type=NDJSON,
        renames=_NS,
    )


_ADMIN = "/v1/admin"
_USER = f"{_ADMIN}/users/{{user}}"


class AdminOperations:
    """What operators do. Auditors may call what only reads."""

    TAG = "admin"
    ROLES = "auditor", "admin"
    """Who may, whatever the policy says: a GET, and anything else; an entry may say otherwise."""

    held = Operation(PersonalDataReader.held, f"GET {_USER}", "What is held of a user")
    memories_of = Operation(
        PersonalDataReader.memories_of, f"GET {_USER}/memories", "A user's memories, to review"
    )
    export = Streaming(
        PersonalDataReader.export,
        f"GET {_USER}/export",
        "All that is held of a user, one a line",
        stream_type=NDJSON,
    )
    remove = Operation(Wiper.remove, f"DELETE {_USER}/memories/{{id}}", "Take one memory away, audited")
    wipe = Operation(
        Wiper.wipe,
        f"POST {_USER}/wipe",
        "Erase a user",
        defaults={"wait": False},
        unlimited_time=True,
        example={"dry_run": True},
    )
    verify_receipt = Operation(
        Wiper.verify_receipt,
        f"POST {_ADMIN}/receipts/verify",
        "Whether the ledger has the wipe that a receipt is of",
        role="auditor",
        types={"receipt": dict[str, Any]},
        answer_field="verified",
    )
    policies = Operation(Admin.policies, f"GET {_ADMIN}/policies", "The policies in force")
    put_policies = Operation(
        Admin.put_policies,
        f"PUT {_ADMIN}/policies",
        "Put policies in force in every worker",
        types={"texts": messages.PolicyTexts},
    )
    test_policies = Operation(
        Admin.test_policies,
        f"POST {_ADMIN}/policies/test",
        "Ask policies without a consequence",
        renames={"question": "input"},
        types={"texts": messages.PolicyTexts},
        answer_record=messages.PolicyAnswers,
        example={"input": {"operation": "read", "namespace": ["user", "alice"]}},
    )
    index = Operation(Admin.index, f"GET {_ADMIN}/index", "How far indexing has come")
    trigger_index = Operation(
        Admin.trigger_index, f"POST {_ADMIN}/index/trigger", "Index what waits or was parked"
    )
    keys = Operation(Admin.keys, f"GET {_ADMIN}/keys", "The key-encryption keys in use")
    rotate_keys = Operation(
        Admin.rotate_keys,
        f"POST {_ADMIN}/keys/rotate",
        "Wrap every data key anew",
        answer_record=messages.RotationAnswer,
        unlimited_time=True,
    )
    settings = Operation(
        Admin.settings,
        f"GET {_ADMIN}/settings",
        "Retention and limits",
        answer_record=messages.SettingsInForce,
    )
    put_settings = Operation(
        Admin.put_settings,
        f"PUT {_ADMIN}/settings",
        "Change retention and limits",
        types={"changes": messages.SettingsChanges},
        answer_record=messages.SettingsInForce,
    )
    stats = Operation(Admin.stats, f"GET {_ADMIN}/stats", "How much there is")
    audit = Operation(Admin.audit, f"GET {_ADMIN}/audit", "Who operated on what, newest first")
    doctor = Operation(
        Doctor.examine,
        f"GET {_ADMIN}/doctor",
        "Check the whole store",
        answer_record=messages.DoctorAnswer,
        read_only=True,
        unlimited_time=True,
    )
    list_api_keys = Operation(
        Admin.list_api_keys, f"GET {_ADMIN}/apikeys", "API keys, without the keys", answer_field="keys"
    )
    create_api_key = Operation(
        Admin.create_api_key,
        f"POST {_ADMIN}/apikeys",
        "Make an API key; it is shown once",
        answer_field="key",
        example={"client": "phone-app", "user": "alice"},
    )
    revoke_api_key = Operation(Admin.revoke_api_key, f"DELETE {_ADMIN}/apikeys/{{id}}", "Revoke an API key")
