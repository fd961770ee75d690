"""The tables of operations on agents: rooms and runs, conversations, knowledge and chats."""

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
        Agents.agents, "GET /v1/agents", "List the agents that the caller may use", answer_field="agents"
    )
    spec = Operation(Agents.agent, f"GET {_AGENT}", "Read the spec of an agent")
    teams = Operation(
        Agents.teams, "GET /v1/teams", "List the teams that the caller may use", answer_field="teams"
    )
    rooms = Operation(
        Agents.rooms,
        f"GET {_AGENT}/memory",
        "List the rooms of an agent that the caller may see, with counts",
        answer_field="rooms",
    )
    tools = Operation(
        Agents.tools,
        f"GET {_AGENT}/tools",
        "List the tools of an agent, in the format of a provider",
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
        "List the newest tool calls, without content",
        defaults={"limit": 100},
        answer_field="calls",
    )
    usage = Operation(
        Agents.usage,
        f"GET {_AGENT}/usage",
        "Read the tokens that an agent used, by user and day",
        answer_field="usage",
    )
    room_stats = Operation(Agents.room_stats, f"GET {_ROOM}", "Read the size and the use of a scratch room")
    reset_room = Operation(
        Agents.reset_room, f"DELETE {_ROOM}", "Empty a scratch room; its versions start at 1 again"
    )
    watch_room = Streaming(
        Agents.watch_room, f"GET {_ROOM}/events", "Watch a scratch room", stream_type=EVENTS
    )
    list_runs = Operation(
        Agents.list_runs,
        "GET /v1/runs",
        "List the runs that the caller owns or is a member of",
        answer_field="runs",
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
        Agents.change_run,
        f"PATCH {_RUN}",
        "Change the members of a run; only its owner may",
        extra_errors=(409,),
    )
    close_run = Operation(
        Agents.close_run,
        f"DELETE {_RUN}",
        "Close a run and delete its rooms; for its owner, or its members if it has none",
    )


_SESSIONS = f"{_AGENT}/sessions"
_SESSION = f"{_SESSIONS}/{{session}}"


class SessionOperations:
    """Conversations with agents: their messages, their summaries, and the context of the next message."""

    TAG = "sessions"

    context = Operation(
        Sessions.context,
        f"POST {_AGENT}/context",
        "Build the context of a message for a model, with a receipt",
        example={"session_id": "monday", "message": "What did we decide?", "budget_tokens": 4000},
    )
    add_turns = Operation(
        Sessions.add_turns,
        f"POST {_SESSION}/turns",
        "Store messages of a conversation",
        types={"messages": list[Message]},
        extra_errors=(409,),
        example={"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]},
    )
    replace_last = Operation(
        Sessions.replace_last,
        f"PUT {_SESSION}/turns/last",
        "Replace or delete the last message of a conversation",
        types={
            "last": Annotated[Message, Meta()],
            "message": Message | None,
        },  # `Meta` keeps its fields together
        extra_errors=(409,),
    )
    sessions = Operation(
        Sessions.sessions,
        f"GET {_SESSIONS}",
        "List the caller's conversations, last active first",
        answer_field="sessions",
    )
    session = Operation(Sessions.session, f"GET {_SESSION}", "Read a conversation with its last messages")
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
        Sessions.summary, f"GET {_AGENT}/summary", "Read the summary of the caller's ended conversations"
    )
    forget_summary = Operation(
        Sessions.forget_summary, f"DELETE {_AGENT}/summary", "Delete that summary with all its versions"
    )


_SOURCE = "/v1/knowledge/{source}"
_DOCUMENT = f"{_SOURCE}/documents/{{name}}"


class KnowledgeOperations:
    """Documents in which agents look things up; for admins and the writers of a source."""

    TAG = "knowledge"

    sources = Operation(
        Knowledge.sources,
        "GET /v1/knowledge",
        "List the sources that the caller may manage",
        answer_field="sources",
    )
    sync_source = Operation(
        Knowledge.sync_source,
        f"POST {_SOURCE}/sync",
        "Sync a source with its files",
        unlimited_time=True,
    )
    documents = Operation(
        Knowledge.documents,
        f"GET {_SOURCE}/documents",
        "List the documents of a source",
        answer_field="documents",
    )
    document = Operation(Knowledge.document, f"GET {_DOCUMENT}", "Read a document with its chunks")
    put_document = Operation(
        Knowledge.put_document,
        f"PUT {_DOCUMENT}",
        "Upload a document to a source; the body is the document, or JSON with its text",
        types={"content": str},
        encoders={"content": encode_document},
        raw_body="content",
        extra_errors=(409,),
    )
    delete_document = Operation(
        Knowledge.delete_document,
        f"DELETE {_DOCUMENT}",
        "Delete an uploaded document",
        extra_errors=(409,),
    )
    search_knowledge = Operation(
        Knowledge.search_knowledge,
        f"POST {_SOURCE}/search",
        "Search a source as agents do",
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
        Chats.run_team,
        "POST /v1/teams/{team}/run",
        "Give a task to the workers of a team",
        unlimited_time=True,
        extra_errors=(409, 502, 504),
        example={"task": "Find out what the door likes."},
    )


class ChatStreaming:
    """A chat whose answer streams; a server answers it at the route of `chat`."""

    TAG = "chat"

    chat_stream = Streaming(
        Chats.chat_stream, _CHAT, "Chat with an agent and stream the answer", stream_type=EVENTS
    )
