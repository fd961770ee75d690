"""The tables of operations on agents: rooms and runs, conversations, knowledge and chats."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from alcove.agents.chats import Chats
from alcove.agents.knowledge import Knowledge, encode_document
from alcove.agents.service import Agents
from alcove.agents.sessions import Sessions
from alcove.agents.teamwork import Teamwork
from alcove.agents.tools import READ_ONLY_TOOLS
from alcove.agents.tools.tool import Format
from alcove.api import messages
from alcove.api.operation import Operation, Streaming
from alcove.api.operations import EVENTS
from alcove.core.records import Message

_AGENT = "/v1/agents/{agent}"
_ROOM = f"{_AGENT}/rooms/{{kind}}"
_RUN = "/v1/runs/{kind}/{id}"


class AgentOperations:
    """Agents and teams, their tools, rooms and runs."""

    TAG = "agents"

    agents = Operation(Agents.agents, "GET /v1/agents", answer_field="agents")
    spec = Operation(Agents.agent, f"GET {_AGENT}")
    teams = Operation(Agents.teams, "GET /v1/teams", answer_field="teams")
    rooms = Operation(Agents.rooms, f"GET {_AGENT}/memory", answer_field="rooms")
    tools = Operation(Agents.tools, f"GET {_AGENT}/tools", types={"format": Format}, answer_field="tools")
    call_with = Operation(
        Agents.call,
        f"POST {_AGENT}/tools/{{tool}}",
        types={"arguments": dict[str, Any], "instances": dict[str, str]},
        defaults={"arguments": {}, "instances": {}},
        answer_record=messages.ToolAnswer,
        extra_errors=(409,),
        read_only=lambda arguments: arguments["tool"] in READ_ONLY_TOOLS,
    )
    calls_of = Operation(
        Agents.calls_of, f"GET {_AGENT}/calls", defaults={"limit": 100}, answer_field="calls"
    )
    usage = Operation(Agents.usage, f"GET {_AGENT}/usage", answer_field="usage")
    room_stats = Operation(Agents.room_stats, f"GET {_ROOM}")
    reset_room = Operation(Agents.reset_room, f"DELETE {_ROOM}")
    watch_room = Streaming(Agents.watch_room, f"GET {_ROOM}/events", stream_type=EVENTS)
    list_runs = Operation(Agents.list_runs, "GET /v1/runs", answer_field="runs")
    open_run = Operation(
        Agents.open_run,
        "POST /v1/runs",
        types={"kind": Literal["workflow", "swarm", "debate"]},
        extra_errors=(404, 409),
        example={"kind": "workflow", "members": ["bob"]},
    )
    change_run = Operation(Agents.change_run, f"PATCH {_RUN}", extra_errors=(409,))
    close_run = Operation(Agents.close_run, f"DELETE {_RUN}")


_SESSIONS = f"{_AGENT}/sessions"
_SESSION = f"{_SESSIONS}/{{session}}"


class SessionOperations:
    """Conversations with agents: their messages, their summaries, and the context of the next message."""

    TAG = "sessions"

    context = Operation(
        Sessions.context,
        f"POST {_AGENT}/context",
        example={"session_id": "monday", "message": "What did we decide?", "budget_tokens": 4000},
    )
    add_turns = Operation(
        Sessions.add_turns,
        f"POST {_SESSION}/turns",
        types={"messages": list[Message]},
        extra_errors=(409,),
        example={"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
    )
    replace_last = Operation(
        Sessions.replace_last,
        f"PUT {_SESSION}/turns/last",
        types={
            "last": Annotated[Message, Meta()],
            "message": Message | None,
        },  # `Meta` keeps its fields together
        extra_errors=(409,),
    )
    sessions = Operation(Sessions.sessions, f"GET {_SESSIONS}", answer_field="sessions")
    session = Operation(Sessions.session, f"GET {_SESSION}")
    end_session = Operation(Sessions.end_session, f"POST {_SESSION}/end", extra_errors=(409,))
    delete_session = Operation(Sessions.delete_session, f"DELETE {_SESSION}")
    prune_sessions = Operation(Sessions.prune_sessions, f"DELETE {_SESSIONS}")
    summary = Operation(Sessions.summary, f"GET {_AGENT}/summary")
    forget_summary = Operation(Sessions.forget_summary, f"DELETE {_AGENT}/summary")


_SOURCE = "/v1/knowledge/{source}"
_DOCUMENT = f"{_SOURCE}/documents/{{name}}"


class KnowledgeOperations:
    """Documents in which agents look things up; for admins and the writers of a source."""

    TAG = "knowledge"

    sources = Operation(Knowledge.sources, "GET /v1/knowledge", answer_field="sources")
    sync_source = Operation(Knowledge.sync_source, f"POST {_SOURCE}/sync", unlimited_time=True)
    documents = Operation(Knowledge.documents, f"GET {_SOURCE}/documents", answer_field="documents")
    document = Operation(Knowledge.document, f"GET {_DOCUMENT}")
    put_document = Operation(
        Knowledge.put_document,
        f"PUT {_DOCUMENT}",
        "Upload a document to a source; the body is the document, or JSON with its text",
        types={"content": str},
        encoders={"content": encode_document},
        raw_body="content",
        extra_errors=(409,),
    )
    delete_document = Operation(Knowledge.delete_document, f"DELETE {_DOCUMENT}", extra_errors=(409,))
    search_knowledge = Operation(
        Knowledge.search_knowledge,
        f"POST {_SOURCE}/search",
        answer_field="items",
        read_only=True,
        example={"query": "How is it cleaned?"},
    )


_CHAT = f"POST {_AGENT}/chat"


class ChatOperations:
    """Chats with agents and teams whose turns an LLM takes."""

    TAG = "chat"

    chat = Operation(
        Chats.chat,
        _CHAT,
        "Chat with an agent; `stream` for the answer as events",
        types={"instances": dict[str, str]},
        defaults={"instances": {}},
        can_stream=True,
        unlimited_time=True,
        extra_errors=(409, 502, 504),
        example={"session_id": "monday", "message": "What did we decide?"},
    )
    run_team = Operation(
        Teamwork.run_team,
        "POST /v1/teams/{team}/run",
        unlimited_time=True,
        extra_errors=(409, 502, 504),
        example={"task": "Find out what the door likes."},
    )


class ChatStreaming:
    """A chat whose answer streams; a server answers it at the route of `chat`."""

    TAG = "chat"

    chat_stream = Streaming(Chats.chat_stream, _CHAT, stream_type=EVENTS)
