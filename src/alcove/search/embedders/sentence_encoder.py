"""Sentence models on onnxruntime: texts into tokens, tokens through the network, its states into one vector.

Which model it is, where its files are and how it is to be read, is said by those who derive from
`SentenceEncoder`: the embedded default (`minilm`), and any folder (`model_folder`).
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from alcove.search.embedders import EmbedderUnavailable, Matrix, evenly_chosen, load_numpy, spans, unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    from alcove.search.late_interaction import Reduction

Pooling = Literal["mean", "cls", "max", "lasttoken"]
Mask: TypeAlias = "NDArray[np.bool_]"

WINDOW = 256
"""Tokens of a window at most: one vector tells no more, however much a model can take."""
POSITIONS = 512
"""Tokens that a network can take, where nothing else is said."""
OVERLAP = 32
SLACK = 16
"""A window that is tokenised by itself may come out a little longer than it was cut."""
BATCH, BATCH_TOKENS = 32, 512
"""Texts, and tokens with their padding, that go through the network together: more is no faster."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CORES = os.cpu_count() or 1
THREADS = min(4, CORES)
_running = threading.BoundedSemaphore(max(2, CORES // THREADS))
"""Batches at once, one of them the indexer's: many long questions must not take many times the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a model is to be read, as it was trained to be."""

    pooling: Pooling = "mean"
    """How the states of a text's tokens become one vector."""
    window: int = WINDOW
    positions: int = POSITIONS
    query_prompt: str = ""
    """What is put before a question."""
    text_prompt: str = ""
    """What is put before a text to be found."""


class TokenStates(NamedTuple):
    """What the network makes of a batch of texts, before each of them becomes one vector."""

    which: list[int]
    """The place of each text among all that were given."""
    states: Matrix
    """A state for each token: [texts, tokens, dimensions]."""
    used: Mask
    """Which tokens are the text's own, and which only fill the batch: [texts, tokens]."""

    def pooled(self, how: Pooling) -> Matrix:
        """One row of length 1 a text."""
        import numpy as np  # noqa: PLC0415

        states, used = self.states, self.used
        if how == "cls":
            rows = states[:, 0]
        elif how == "lasttoken":
            rows = states[np.arange(len(used)), used.sum(axis=1) - 1]
        elif how == "max":
            rows = np.where(used[:, :, None], states, -np.inf).max(axis=1)
        else:
            rows = (used[:, None, :].astype(np.float32) @ states)[:, 0] / used.sum(axis=1, keepdims=True)
        return unit(rows)


class Network(NamedTuple):
    """A model that is loaded."""

    tokenizer: Tokenizer
    session: InferenceSession
    inputs: dict[str, str]
    """The inputs that it wants and their types."""
    output: str
    """The one that is read: a state for each token, or where there is none, for each text."""
    padding: int
    """The token that fills a batch."""
    room: int
    """Tokens of a text that fit in a window, beside its prompt and what the tokenizer adds."""
    dimensions: int = 0

    def states(self, which: list[int], tokens: list[list[int]]) -> TokenStates:
        """Texts through the network, all at once."""
        import numpy as np  # noqa: PLC0415

        lengths = np.array([*map(len, tokens)])
        used = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(used.shape, self.padding, dtype=np.int64)
        ids[used] = np.concatenate(tokens)
        feed = dict(zip(INPUTS, (ids, used.astype(np.int64), np.zeros_like(ids)), strict=True))
        narrow = {name for name, kind in self.inputs.items() if kind == "tensor(int32)"}
        given = {name: feed[name].astype(np.int32) if name in narrow else feed[name] for name in self.inputs}
        with _running:
            states = np.asarray(self.session.run([self.output], given)[0], dtype=np.float32)
        if states.ndim == 2:  # it pools them itself: one state a text
            return TokenStates(which, states[:, None, :], np.ones((len(states), 1), dtype=bool))
        return TokenStates(which, states, used)


class SentenceEncoder(ABC):
    """An embedder that runs a model from files. Nothing is loaded before the first text that needs it."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._loading = threading.Lock()
        self._loaded: Network | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """What vectors are marked with; it changes with the files and with how they are read."""

    @property
    def dimensions(self) -> int:
        return self._network().dimensions

    @abstractmethod
    def files(self) -> tuple[Path, Path]:
        """The tokenizer's file and the network's, once they are known to be the right ones."""

    def windows(self, text: str) -> list[str]:
        reading = self.reading
        prompt = max(reading.text_prompt, reading.query_prompt, key=len)
        if len((prompt + text).encode()) <= reading.window - SLACK:  # a token is a byte at least
            return [text]
        network = self._network()
        # In a batch of one: for a single text the tokenizer keeps every other thread of Python waiting.
        (encoding,) = network.tokenizer.encode_batch([text], add_special_tokens=False)
        if len(encoding.ids) <= network.room:
            return [text]
        word, place = encoding.word_ids, encoding.offsets
        begins = [n for n in range(len(word)) if n == 0 or word[n] != word[n - 1]]
        # Where there are no spaces, all of a text may be one word.
        words = pairwise([*begins, len(word)])
        pieces = [(n, min(n + OVERLAP, end)) for begin, end in words for n in range(begin, end, OVERLAP)]
        runs = spans(pieces, size=network.room, overlap=OVERLAP)
        return [text[place[first][0] : place[end - 1][1]] for first, end in runs]

    def reduction(self) -> Reduction | None:
        """What is to be kept of each token's state, for late interaction; None where nothing is."""
        return None

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row a text; a text longer than a window gets the middle of its windows."""
        return self._embedded(texts, self.reading.text_prompt)

    def embed_with_tokens(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """One row a text, and by the same pass what is kept of the tokens of each, nothing of a long one."""
        tokens = [b""] * len(texts)
        return self._embedded(texts, self.reading.text_prompt, tokens), tokens

    def embed_query_with_tokens(self, text: str) -> tuple[Matrix, bytes]:
        """One row for a question, and what is kept of its tokens."""
        windows = evenly_chosen(self.windows(text))
        tokens = [b""] * len(windows)
        rows = self._embedded(windows, self.reading.query_prompt, tokens)
        return rows.mean(axis=0, keepdims=True), tokens[0] if len(windows) == 1 else b""

    def embed_query(self, text: str) -> Matrix:
        """One row for a question, the middle of its windows."""
        return self.embed_query_with_tokens(text)[0]

    def _embedded(self, texts: Sequence[str], prompt: str, kept: list[bytes] | None = None) -> Matrix:
        """One row a text; where it is given, `kept` gets what is kept of the tokens of each short one."""
        import numpy as np  # noqa: PLC0415

        network, most = self._network(), self.reading.window + SLACK
        parts = [[each.ids] for each in network.tokenizer.encode_batch([prompt + text for text in texts])]
        for n, part in enumerate(parts):
            if len(part[0]) > most:
                windows = [prompt + window for window in self.windows(texts[n])]
                parts[n] = [each.ids for each in network.tokenizer.encode_batch(windows)]
        tokens = [self._cut(ids) for part in parts for ids in part]
        rows = np.zeros((len(tokens), network.dimensions), dtype=np.float32)
        reduction = self.reduction() if kept is not None and len(tokens) == len(texts) else None
        for batch in self._passes(network, tokens):
            rows[batch.which] = batch.pooled(self.reading.pooling)
            if reduction and kept is not None:
                for n, states, used in zip(*batch, strict=True):
                    kept[n] = reduction.reduce(states[used])
        if len(rows) == len(texts):
            return rows
        first = np.cumsum([0, *map(len, parts)])[:-1]
        return unit(np.add.reduceat(rows, first, axis=0))

    def _cut(self, ids: list[int]) -> list[int]:
        """As many tokens as the network takes; the last one ends the text and stays."""
        most = self.reading.positions
        return ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]

    def _passes(self, network: Network, tokens: list[list[int]]) -> Iterator[TokenStates]:
        """The token states of texts, batch by batch: those of like length, so that little is padding."""
        order = sorted(range(len(tokens)), key=lambda n: len(tokens[n]), reverse=True)
        while order:
            count = max(1, min(BATCH, BATCH_TOKENS // len(tokens[order[0]])))
            batch, order = order[:count], order[count:]
            yield network.states(batch, [tokens[n] for n in batch])

    def _network(self) -> Network:
        with self._loading:
            if self._loaded is None:
                load_numpy()
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Network:
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - the model is lazy
        except ImportError as error:
            raise EmbedderUnavailable(f"{error.name} is missing: pip install alcove") from None
        words, weights = self.files()
        session = opened_network(weights)
        try:
            tokenizer = Tokenizer.from_file(str(words))
        except Exception as error:  # a bare Exception
            raise EmbedderUnavailable(f"the tokenizer {words} cannot be loaded: {error}") from None
        padding = (tokenizer.padding or {}).get("pad_id", 0)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        inputs = {each.name: each.type for each in session.get_inputs()}
        if unknown := inputs.keys() - {*INPUTS}:
            raise EmbedderUnavailable(f"the model {weights} wants {unknown.pop()}, which no tokenizer gives")
        outputs = session.get_outputs()
        output = next((each for each in outputs if len(each.shape) == 3), outputs[0]).name
        prompts = (self.reading.query_prompt, self.reading.text_prompt)
        longest = max((tokenizer.encode(prompt).ids for prompt in prompts), key=len)
        room = self.reading.window - len(longest)
        if room < OVERLAP:
            raise EmbedderUnavailable(f"the prompts of {weights} leave no room for a text")
        network = Network(tokenizer, session, inputs, output, padding, room)
        try:
            return network._replace(dimensions=network.states([0], [longest or [0]]).states.shape[-1])
        except Exception as error:  # bare classes of onnxruntime's own
            raise EmbedderUnavailable(f"the model {weights} does not run: {error}") from None


def opened_network(weights: Path, library: str | None = None) -> InferenceSession:
    """A network that is ready to run; `library` has operators that onnxruntime itself does not."""
    try:
        from onnxruntime import InferenceSession, SessionOptions  # noqa: PLC0415 - the model is lazy
    except ImportError as error:
        raise EmbedderUnavailable(f"{error.name} is missing: pip install alcove") from None
    options = SessionOptions()
    options.intra_op_num_threads = THREADS
    options.enable_cpu_mem_arena = False  # which would keep what the largest batch took
    # An idle server must not burn a core waiting for the next text.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        if library:
            options.register_custom_ops_library(library)
        return InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # bare classes of its own
        raise EmbedderUnavailable(f"the model {weights} cannot be loaded: {error}") from None
