"""The tables of operations. An operation needs one entry here and one method of the service."""

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
from alcove.core.records import BatchOperation
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
_MEMORIES = "/v1/memories"
_NS = {"namespace": "ns", "prefix": "ns"}
_PREFIX = {"prefix": "namespace_prefix"}
_KINDS = {"kinds": validation.parse_kinds}
_FILTER = {"filter": filter_to_json}
_EXAMPLE = {"namespace": ["user", "noop", "notes"], "key": "tea"}


def _encode_batch(operations: Sequence[BatchOperation | Mapping[str, object]]) -> msgspec.Raw:
    """The operations of a batch as a client sends them; an error says which it is about."""
    encoded = []
    for position, operation in enumerate(validation.parse_operations(operations)):
        fields = {name: getattr(operation, name) for name in operation.__struct_fields__}
        try:
            fields["namespace"] = [*Namespace.checked(operation.namespace)]
            fields["index"] = _encode_index(fields.get("index"))
            raw = {
                name: msgspec.Raw(validation.encode_json(value, name))
                for name, value in fields.items()
                if value is not None
            }
        except AlcoveError as error:
            error.details["operation"] = position
            raise
        encoded.append({"op": type(operation).__struct_config__.tag, **raw})
    return msgspec.Raw(msgspec.json.encode(encoded))


def _encode_index(index: Any) -> Any:
    """An index as JSON has it: its paths are a list, any other kind stays as it is."""
    return [*index] if isinstance(index, tuple) else index


class MemoryOperations:
    """Reading and writing memories."""

    TAG = "memories"

    whoami = Operation(Access.whoami, "GET /v1/me")
    put = Operation(
        Writer.put,
        f"PUT {_MEMORIES}",
        encoders={"index": _encode_index},
        extra_errors=(409,),
        quick=True,
        example={**_EXAMPLE, "value": {"likes": "green tea"}, "index": True},
    )
    get = Operation(
        Reader.get, f"GET {_MEMORIES}", renames=_NS, not_found="there is no such memory", quick=True
    )
    delete = Operation(
        Writer.delete, f"DELETE {_MEMORIES}", renames=_NS, no_content=True, quick=True, extra_errors=(409,)
    )
    touch = Operation(
        Writer.touch,
        f"POST {_MEMORIES}/touch",
        extra_errors=(404,),
        quick=True,
        example={**_EXAMPLE, "ttl_seconds": 3600},
    )
    search = Operation(
        Searcher.search,
        f"POST {_MEMORIES}/search",
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
        f"POST {_MEMORIES}/list",
        renames=_PREFIX,
        encoders=_FILTER,
        answer_field="items",
        read_only=True,
        example={"namespace_prefix": ["user", "noop"], "limit": 20},
    )
    batch = Operation(
        Writer.batch,
        f"POST {_MEMORIES}/batch",
        types={"operations": messages.Operations},
        encoders={"operations": _encode_batch},
        answer_record=messages.BatchAnswer,
        extra_errors=(404, 409),
        example={"operations": [{"op": "put", **_EXAMPLE, "value": {"n": 1}}, {"op": "get", **_EXAMPLE}]},
    )
    namespaces = Operation(Reader.namespaces, f"GET {_MEMORIES}/namespaces", answer_field="namespaces")
    tree = Operation(Overview.tree, f"GET {_MEMORIES}/tree", renames=_NS, answer_field="branches")
    newest = Operation(Overview.newest, f"GET {_MEMORIES}/newest", renames=_NS, answer_field="items")
    activity = Operation(Overview.activity, f"GET {_MEMORIES}/activity", renames=_NS)
    map = Operation(Overview.map, f"GET {_MEMORIES}/map", renames=_NS)
    events = Operation(Timeline.events, f"GET {_MEMORIES}/events", renames=_NS, encoders=_KINDS)
    history = Operation(Reader.history, f"GET {_MEMORIES}/history", renames=_NS, answer_field="versions")
    follow = Streaming(
        Timeline.follow,
        f"GET {_MEMORIES}/events/stream",
        "Follow the timeline as server-sent events; resumes with Last-Event-ID",
        stream_type=EVENTS,
        renames=_NS,
        encoders=_KINDS,
    )
    export_memories = Streaming(Reader.export, f"GET {_MEMORIES}/export", stream_type=NDJSON, renames=_NS)


_ADMIN = "/v1/admin"
_USER = f"{_ADMIN}/users/{{user}}"


class AdminOperations:
    """Operations for admins; auditors may call those that only read."""

    TAG = "admin"
    ROLES = "auditor", "admin"
    """The roles for a GET and for anything else, whatever the policy says; an entry may name another."""

    held = Operation(PersonalDataReader.held, f"GET {_USER}")
    memories_of = Operation(PersonalDataReader.memories_of, f"GET {_USER}/memories")
    export = Streaming(PersonalDataReader.export, f"GET {_USER}/export", stream_type=NDJSON)
    remove = Operation(Wiper.remove, f"DELETE {_USER}/memories/{{id}}")
    wipe = Operation(
        Wiper.wipe,
        f"POST {_USER}/wipe",
        defaults={"wait": False},
        unlimited_time=True,
        example={"dry_run": True},
    )
    verify_receipt = Operation(
        Wiper.verify_receipt,
        f"POST {_ADMIN}/receipts/verify",
        role="auditor",
        types={"receipt": dict[str, Any]},
        answer_field="verified",
    )
    policies = Operation(Admin.policies, f"GET {_ADMIN}/policies")
    put_policies = Operation(
        Admin.put_policies, f"PUT {_ADMIN}/policies", types={"texts": messages.PolicyTexts}
    )
    test_policies = Operation(
        Admin.test_policies,
        f"POST {_ADMIN}/policies/test",
        renames={"question": "input"},
        types={"texts": messages.PolicyTexts},
        answer_record=messages.PolicyAnswers,
        example={"input": {"operation": "read", "namespace": ["user", "alice"]}},
    )
    index = Operation(Admin.index, f"GET {_ADMIN}/index")
    trigger_index = Operation(Admin.trigger_index, f"POST {_ADMIN}/index/trigger")
    keys = Operation(Admin.keys, f"GET {_ADMIN}/keys")
    rotate_keys = Operation(
        Admin.rotate_keys,
        f"POST {_ADMIN}/keys/rotate",
        answer_record=messages.RotationAnswer,
        unlimited_time=True,
    )
    settings = Operation(Admin.settings, f"GET {_ADMIN}/settings", answer_record=messages.ActiveSettings)
    put_settings = Operation(
        Admin.put_settings,
        f"PUT {_ADMIN}/settings",
        types={"changes": messages.SettingsChanges},
        answer_record=messages.ActiveSettings,
    )
    stats = Operation(Admin.stats, f"GET {_ADMIN}/stats")
    audit = Operation(Admin.audit, f"GET {_ADMIN}/audit")
    doctor = Operation(
        Doctor.examine,
        f"GET {_ADMIN}/doctor",
        answer_record=messages.DoctorAnswer,
        read_only=True,
        unlimited_time=True,
    )
    list_api_keys = Operation(Admin.list_api_keys, f"GET {_ADMIN}/apikeys", answer_field="keys")
    create_api_key = Operation(
        Admin.create_api_key,
        f"POST {_ADMIN}/apikeys",
        answer_field="key",
        example={"client": "phone-app", "user": "alice"},
    )
    revoke_api_key = Operation(Admin.revoke_api_key, f"DELETE {_ADMIN}/apikeys/{{id}}")
