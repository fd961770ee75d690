"""The tables of operations on agents: rooms and runs, conversations, knowledge, and talking with them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from alcove.agents.knowledge import Knowledge, encode_document
from alcove.agents.service import Agents
from alcove.agents.sessions import Sessions
from alcove.agents.teamwork import Chats
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

    agents = Operation(
        Agents.agents, "GET /v1/agents", "The agents the caller may use", answer_field="agents"
    )
    spec = Operation(Agents.agent, f"GET {_AGENT}", "One agent's spec")
    teams = Operation(Agents.teams, "GET /v1/teams", "The teams the caller may use", answer_field="teams")
    rooms = Operation(
        Agents.rooms,
        f"GET {_AGENT}/memory",
        "An agent's rooms that the caller may see, with counts",
        answer_field="rooms",
    )
    tools = Operation(
        Agents.tools,
        f"GET {_AGENT}/tools",
        "An agent's tools, as a provider takes them",
        types={"format": Format},
        answer_field="tools",
    )
    call_with = Operation(
        Agents.call,
        f"POST {_AGENT}/tools/{{tool}}",
        "Call a tool",
        types={"arguments": dict[str, Any], "instances": dict[str, str]},
        defaults={"arguments": {}, "instances": {}},
        answer_record=messages.ToolAnswer,
        extra_errors=(409,),
        read_only=lambda arguments: arguments["tool"] in READ_ONLY_TOOLS,
    )
    calls_of = Operation(
        Agents.calls_of,
        f"GET {_AGENT}/calls",
        "The newest tool calls, without content",
        defaults={"limit": 100},
        answer_field="calls",
    )
    usage = Operation(
        Agents.usage,
        f"GET {_AGENT}/usage",
        "The tokens that an agent took, by user and day",
        answer_field="usage",
    )
    room_stats = Operation(
        Agents.room_stats, f"GET {_ROOM}", "How much a scratch room holds and how it was used"
    )
    reset_room = Operation(
        Agents.reset_room, f"DELETE {_ROOM}", "Empty a scratch room; its versions start at 1 again"
    )
    watch_room = Streaming(
        Agents.watch_room, f"GET {_ROOM}/events", "Watch a scratch room", stream_type=EVENTS
    )
    list_runs = Operation(
        Agents.list_runs, "GET /v1/runs", "The runs that the caller owns or is in", answer_field="runs"
    )
    open_run = Operation(
        Agents.open_run,
        "POST /v1/runs",
        "Open a workflow, swarm or debate for several users",
        types={"kind": Literal["workflow", "swarm", "debate"]},
        extra_errors=(404, 409),
        example={"kind": "workflow", "members": ["bob"]},
    )
    change_run = Operation(
        Agents.change_run, f"PATCH {_RUN}", "Change who is in a run; only its owner may", extra_errors=(409,)
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
        extra_errors=(409,),
        example={"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
    )
    replace_last = Operation(
        Sessions.replace_last,
        f"PUT {_SESSION}/turns/last",
        "Replace the last message of a conversation, or take it away",
        types={"last": Annotated[Message, Meta()], "message": Message | None},  # each in a field of its own
        extra_errors=(409,),
    )
    sessions = Operation(
        Sessions.sessions,
        f"GET {_SESSIONS}",
        "The caller's conversations, last active first",
        answer_field="sessions",
    )
    session = Operation(Sessions.session, f"GET {_SESSION}", "One conversation with its last messages")
    end_session = Operation(
        Sessions.end_session,
        f"POST {_SESSION}/end",
        "End a conversation, so that it is summarised",
        extra_errors=(409,),
    )
    delete_session = Operation(Sessions.delete_session, f"DELETE {_SESSION}", "Delete a conversation")
    prune_sessions = Operation(
        Sessions.prune_sessions, f"DELETE {_SESSIONS}", "Delete all conversations but the last active ones"
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
        Knowledge.sources, "GET /v1/knowledge", "The sources the caller may manage", answer_field="sources"
    )
    sync_source = Operation(
        Knowledge.sync_source,
        f"POST {_SOURCE}/sync",
        "Bring a source in step with its files",
        unlimited_time=True,
    )
    documents = Operation(
        Knowledge.documents, f"GET {_SOURCE}/documents", "The documents of a source", answer_field="documents"
    )
    document = Operation(Knowledge.document, f"GET {_DOCUMENT}", "One document with its pieces")
    put_document = Operation(
        Knowledge.put_document,
        f"PUT {_DOCUMENT}",
        "Put a document into a source; the body is the document, or JSON with its text",
        types={"content": str},
        encoders={"content": encode_document},
        raw_body="content",
        extra_errors=(409,),
    )
    delete_document = Operation(
        Knowledge.delete_document,
        f"DELETE {_DOCUMENT}",
        "Take a document that was put away",
        extra_errors=(409,),
    )
    search_knowledge = Operation(
        Knowledge.search_knowledge,
        f"POST {_SOURCE}/search",
        "What agents would be given on a question",
        answer_field="items",
        read_only=True,
        example={"query": "How is it cleaned?"},
    )


_CHAT = f"POST {_AGENT}/chat"


class ChatOperations:
    """Talking with agents and teams, whose turns a model takes."""

    TAG = "chat"

    chat = Operation(
        Chats.chat,
        _CHAT,
        "Say something to an agent; `stream` for the answer as events",
        types={"instances": dict[str, str]},
        defaults={"instances": {}},
        can_stream=True,
        unlimited_time=True,
        extra_errors=(409, 502, 504),
        example={"session_id": "monday", "message": "What did we decide?"},
    )
    run_team = Operation(
        Chats.run_team,
        "POST /v1/teams/{team}/run",
        "Pass a task to the workers of a team",
        unlimited_time=True,
        extra_errors=(409, 502, 504),
        example={"task": "Find out what the door likes."},
    )


class ChatStreaming:
    """The same as it happens; what a server answers at the route of `chat` to who asks so."""

    TAG = "chat"

    chat_stream = Streaming(
        Chats.chat_stream, _CHAT, "Say something, and hear the answer as it comes", stream_type=EVENTS
    )
