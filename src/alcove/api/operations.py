"""The tables of operations. One entry here and one method of the service are all that an operation needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from alcove.agents.knowledge import Knowledge, as_text
from alcove.agents.messages import Message
from alcove.agents.service import Agents
from alcove.agents.sessions import Sessions
from alcove.agents.tools import READING
from alcove.api import messages
from alcove.api.operation import Operation, Streaming
from alcove.core.errors import AlcoveError
from alcove.core.namespace import Namespace
from alcove.core.records import Operation as Write
from alcove.store import validation
from alcove.store.admin import Admin
from alcove.store.memories import Memories

NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
_AT = "/v1/memories"
_NS = {"namespace": "ns", "prefix": "ns"}
_KINDS = {"kinds": validation.kinds}
_EXAMPLE = {"namespace": ["user", "noop", "notes"], "key": "tea"}


def _written(operations: Sequence[Write | Mapping[str, object]]) -> msgspec.Raw:
    """The operations of a batch as a client sends them; an error says which it is about."""
    return msgspec.Raw(
        b"[%b]" % b",".join(_line(*each) for each in enumerate(validation.operations(operations)))
    )


def _line(position: int, write: Write) -> bytes:
    try:
        fields = {name: getattr(write, name) for name in write.__struct_fields__}
        given = {name: value for name, value in fields.items() if value is not None}
        given["namespace"] = [*Namespace.checked(write.namespace)]
        lines = {name: msgspec.Raw(validation.json(value, name)) for name, value in given.items()}
        return msgspec.json.encode({"op": type(write).__struct_config__.tag, **lines})
    except AlcoveError as error:
        error.details["operation"] = position
        raise


class MemoryOperations:
    """Reading and writing memories."""

    TAG = "memories"

    put = Operation(
        Memories.put,
        f"PUT {_AT}",
        "Store a memory",
        refuses=(409,),
        example={**_EXAMPLE, "value": {"likes": "green tea"}, "index": {"text": "likes green tea"}},
    )
    get = Operation(Memories.get, f"GET {_AT}", "Read a memory", names=_NS, absent="there is no such memory")
    delete = Operation(
        Memories.delete,
        f"DELETE {_AT}",
        "Delete a memory; absent is fine",
        names=_NS,
        quiet=True,
        refuses=(409,),
    )
    touch = Operation(
        Memories.touch,
        f"POST {_AT}/touch",
        "Change when a memory expires",
        refuses=(404,),
        example={**_EXAMPLE, "ttl_seconds": 3600},
    )
    search = Operation(
        Memories.search,
        f"POST {_AT}/search",
        "Find memories",
        defaults={"namespace_prefix": msgspec.NODEFAULT},
        within="items",
        refuses=(503,),
        reads=True,
        example={"namespace_prefix": ["user", "noop"], "query": "what to drink", "limit": 5},
    )
    list = Operation(
        Memories.list,
        f"POST {_AT}/list",
        "List memories without their values",
        within="items",
        reads=True,
        example={"namespace_prefix": ["user", "noop"], "limit": 20},
    )
    batch = Operation(
        Memories.batch,
        f"POST {_AT}/batch",
        "Many operations in one transaction: all of them or none",
        types={"operations": messages.Operations},
        sends={"operations": _written},
        told_as=messages.BatchAnswer,
        refuses=(404, 409),
        example={"operations": [{"op": "put", **_EXAMPLE, "value": {"n": 1}}, {"op": "get", **_EXAMPLE}]},
    )
    namespaces = Operation(
        Memories.namespaces,
        f"GET {_AT}/namespaces",
        "List the namespaces that hold something",
        within="namespaces",
    )
    events = Operation(Memories.events, f"GET {_AT}/events", "Read the timeline", names=_NS, sends=_KINDS)
    history = Operation(
        Memories.history,
        f"GET {_AT}/history",
        "Every retained version of one memory, newest first",
        names=_NS,
        within="versions",
    )
    follow = Streaming(
        Memories.follow,
        f"GET {_AT}/events/stream",
        "Follow the timeline as server-sent events; resumes with Last-Event-ID",
        streams=EVENTS,
        names=_NS,
        sends=_KINDS,
    )
    export_memories = Streaming(
        Memories.export,
        f"GET {_AT}/export",
        "Every memory the caller may see below a namespace, one a line",
        streams=NDJSON,
        names=_NS,
    )


_ADMIN = "/v1/admin"
_USER = f"{_ADMIN}/users/{{user}}"


class AdminOperations:
    """What operators do. Auditors may call what only reads."""

    TAG = "admin"
    ROLES = "auditor", "admin"
    """Who may, whatever the policy says: a GET, and anything else; an entry may say otherwise."""

    held = Operation(Admin.held, f"GET {_USER}", "What is held of a user")
    memories_of = Operation(Admin.memories_of, f"GET {_USER}/memories", "A user's memories, to review")
    export = Streaming(
        Admin.export, f"GET {_USER}/export", "All that is held of a user, one a line", streams=NDJSON
    )
    remove = Operation(Admin.remove, f"DELETE {_USER}/memories/{{id}}", "Take one memory away, audited")
    wipe = Operation(
        Admin.wipe,
        f"POST {_USER}/wipe",
        "Erase a user",
        defaults={"wait": False},
        unhurried=True,
        example={"dry_run": True},
    )
    verify_receipt = Operation(
        Admin.verify_receipt,
        f"POST {_ADMIN}/receipts/verify",
        "Whether the ledger has the wipe that a receipt is of",
        role="auditor",
        types={"receipt": dict[str, Any]},
        within="verified",
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
        names={"question": "input"},
        types={"texts": messages.PolicyTexts},
        told_as=messages.PolicyAnswers,
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
        told_as=messages.RotationAnswer,
        unhurried=True,
    )
    settings = Operation(
        Admin.settings, f"GET {_ADMIN}/settings", "Retention and limits", told_as=messages.SettingsInForce
    )
    put_settings = Operation(
        Admin.put_settings,
        f"PUT {_ADMIN}/settings",
        "Change retention and limits",
        types={"changes": messages.SettingsChanges},
        told_as=messages.SettingsInForce,
    )
    stats = Operation(Admin.stats, f"GET {_ADMIN}/stats", "How much there is")
    audit = Operation(Admin.audit, f"GET {_ADMIN}/audit", "Who operated on what, newest first")
    doctor = Operation(
        Admin.doctor,
        f"GET {_ADMIN}/doctor",
        "Check the whole store",
        told_as=messages.DoctorAnswer,
        reads=True,
        unhurried=True,
    )
    list_api_keys = Operation(
        Admin.list_api_keys, f"GET {_ADMIN}/apikeys", "API keys, without the keys", within="keys"
    )
    create_api_key = Operation(
        Admin.create_api_key,
        f"POST {_ADMIN}/apikeys",
        "Make an API key; it is shown once",
        within="key",
        example={"client": "phone-app", "user": "alice"},
    )
    revoke_api_key = Operation(Admin.revoke_api_key, f"DELETE {_ADMIN}/apikeys/{{id}}", "Revoke an API key")


_AGENT = "/v1/agents/{agent}"
_ROOM = f"{_AGENT}/rooms/{{kind}}"
_RUN = "/v1/runs/{kind}/{id}"


class AgentOperations:
    """Agents and teams, their tools, rooms and runs."""

    TAG = "agents"

    agents = Operation(Agents.agents, "GET /v1/agents", "The agents the caller may use", within="agents")
    agent = Operation(Agents.agent, f"GET {_AGENT}", "One agent's spec")
    teams = Operation(Agents.teams, "GET /v1/teams", "The teams the caller may use", within="teams")
    rooms = Operation(
        Agents.rooms,
        f"GET {_AGENT}/memory",
        "An agent's rooms that the caller may see, with counts",
        within="rooms",
    )
    tools = Operation(
        Agents.tools,
        f"GET {_AGENT}/tools",
        "An agent's tools, as a provider takes them",
        types={"format": Literal["openai", "anthropic", "mcp"]},
        within="tools",
    )
    call_with = Operation(
        Agents.call,
        f"POST {_AGENT}/tools/{{tool}}",
        "Call a tool",
        types={"arguments": dict[str, Any], "instances": dict[str, str]},
        defaults={"arguments": {}, "instances": {}},
        told_as=messages.ToolAnswer,
        refuses=(409,),
        reads=lambda arguments: arguments["tool"] in READING,
    )
    calls_of = Operation(
        Agents.calls_of,
        f"GET {_AGENT}/calls",
        "The newest tool calls, without content",
        defaults={"limit": 100},
        within="calls",
    )
    room_stats = Operation(
        Agents.room_stats, f"GET {_ROOM}", "How much a scratch room holds and how it was used"
    )
    reset_room = Operation(
        Agents.reset_room, f"DELETE {_ROOM}", "Empty a scratch room; its versions start at 1 again"
    )
    watch_room = Streaming(Agents.watch_room, f"GET {_ROOM}/events", "Watch a scratch room", streams=EVENTS)
    list_runs = Operation(
        Agents.list_runs, "GET /v1/runs", "The runs that the caller owns or is in", within="runs"
    )
    open_run = Operation(
        Agents.open_run,
        "POST /v1/runs",
        "Open a workflow, swarm or debate for several users",
        types={"kind": Literal["workflow", "swarm", "debate"]},
        refuses=(404, 409),
        example={"kind": "workflow", "members": ["bob"]},
    )
    change_run = Operation(
        Agents.change_run, f"PATCH {_RUN}", "Change who is in a run; only its owner may", refuses=(409,)
    )
    close_run = Operation(
        Agents.close_run,
        f"DELETE {_RUN}",
        "Close a run and take its rooms away; its owner, or members left without one",
    )


_SESSIONS = f"{_AGENT}/sessions"
_SESSION = f"{_SESSIONS}/{{session}}"


class SessionOperations:
    """Conversations with agents: what was said, its summaries, and the context of the next message."""

    TAG = "sessions"

    context = Operation(
        Sessions.context,
        f"POST {_AGENT}/context",
        "What a model is to be sent for a message, with a receipt",
        example={"session_id": "monday", "message": "What did we decide?", "budget_tokens": 4000},
    )
    add_turns = Operation(
        Sessions.add_turns,
        f"POST {_SESSION}/turns",
        "Keep messages of a conversation",
        types={"messages": list[Message]},
        refuses=(409,),
        example={"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
    )
    sessions = Operation(
        Sessions.sessions,
        f"GET {_SESSIONS}",
        "The caller's conversations, last active first",
        within="sessions",
    )
    session = Operation(Sessions.session, f"GET {_SESSION}", "One conversation with its last messages")
    end_session = Operation(
        Sessions.end_session,
        f"POST {_SESSION}/end",
        "End a conversation, so that it is summarised",
        refuses=(409,),
    )
    delete_session = Operation(Sessions.delete_session, f"DELETE {_SESSION}", "Delete a conversation")
    keep_sessions = Operation(
        Sessions.keep_sessions, f"DELETE {_SESSIONS}", "Delete all conversations but the last active ones"
    )
    summary = Operation(
        Sessions.summary, f"GET {_AGENT}/summary", "The summary of the caller's conversations that have ended"
    )
    forget_summary = Operation(
        Sessions.forget_summary, f"DELETE {_AGENT}/summary", "Take that summary away, with all it ever said"
    )


_SOURCE = "/v1/knowledge/{source}"
_DOCUMENT = f"{_SOURCE}/documents/{{name}}"


class KnowledgeOperations:
    """Documents that agents look things up in; for admins and a source's writers."""

    TAG = "knowledge"

    sources = Operation(
        Knowledge.sources, "GET /v1/knowledge", "The sources the caller may manage", within="sources"
    )
    sync_source = Operation(
        Knowledge.sync_source, f"POST {_SOURCE}/sync", "Bring a source in step with its files", unhurried=True
    )
    documents = Operation(
        Knowledge.documents, f"GET {_SOURCE}/documents", "The documents of a source", within="documents"
    )
    document = Operation(Knowledge.document, f"GET {_DOCUMENT}", "One document with its pieces")
    put_document = Operation(
        Knowledge.put_document,
        f"PUT {_DOCUMENT}",
        "Put a document into a source; the body is the document, or JSON with its text",
        types={"content": str},
        sends={"content": as_text},
        raw="content",
        refuses=(409,),
    )
    delete_document = Operation(
        Knowledge.delete_document, f"DELETE {_DOCUMENT}", "Take a document that was put away", refuses=(409,)
    )
    search_knowledge = Operation(
        Knowledge.search_knowledge,
        f"POST {_SOURCE}/search",
        "What agents would be given on a question",
        within="items",
        reads=True,
        example={"query": "How is it cleaned?"},
    )
