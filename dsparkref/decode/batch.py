"""Many requests at once: one target pass per cycle, each row at its own pace.

Row by row the outcome is that of ``generate`` alone: the same drafts, the same random
numbers in the same order, the same verifier. Exactly so in exact arithmetic; a pass
over many rows rounds differently from a pass over one, so that near ties of two
logits may fall to the other side. And as far as the policy looks at one request at a
time: one that shares a budget gives a row other verify lengths when it has neighbours,
hence other random numbers; then the law of the output is the same, not the sample.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dsparkref.decode.cycle import Decoding, Running, Sampler
from dsparkref.decode.request import Prompt, Request, make_request
from dsparkref.decode.target import Target
from dsparkref.records import CycleTrace, Generation
from dsparkref.shapes import check_range, check_sequence, problem
from dsparkref.verify.policies import Policy
from dsparkref.verify.sampling import as_generator

Stream = torch.Generator | int | None


def generate_batch(
    target: Target,
    drafter: Any,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token_ids: Sequence[int] | None = None,
    policy: Policy | None = None,
    verifier: str = "rejection",
    generators: Sequence[Stream] | None = None,
) -> list[Generation]:
    """Decode many prompts side by side; each result is what ``generate`` gives alone.

    prompts: one or more, of any lengths; list[int] or LongTensor [T] or [1, T] each.
    generators: one per prompt (a torch.Generator, an int seed or None), or None. One
    generator given twice serves both, in turn. All else is as in ``generate``, the
    same for all prompts.

    Raises:
        TypeError, ValueError: before any model runs; the message names the prompt.
    """
    decoder = BatchDecoder(
        target,
        drafter,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        policy=policy,
        verifier=verifier,
    )
    check_sequence("prompts", prompts)
    if not prompts:
        raise problem("prompts", "not be empty", "at least one prompt", "none")
    streams = one_per_prompt(generators, len(prompts))
    requests = [
        make_request(target, prompt, max_new_tokens, stop_token_ids, f"prompts[{i}]")
        for i, prompt in enumerate(prompts)
    ]
    numbers = [
        decoder.queue(request, stream)
        for request, stream in zip(requests, streams, strict=True)
    ]
    while decoder.step():
        pass
    done = decoder.finished()
    return [done[number] for number in numbers]


class BatchDecoder:
    """Requests that come and go, decoded together, one cycle per ``step``.

    Temperature, filters, policy and verifier are the decoder's, the same for all;
    prompt, cap, stop tokens and random stream are each request's own.

        decoder = BatchDecoder(target, drafter, policy=PrefixScheduler(sps))
        number = decoder.add(prompt_ids, max_new_tokens=64)
        while decoder.step():
            ...  # more requests may be added here
        generation = decoder.finished()[number]

    The policy sees the confidences of all running requests together. A request that
    ends leaves the batch, and its caches go with it: what is held grows with the
    tokens committed by the requests that still run.
    """

    def __init__(
        self,
        target: Target,
        drafter: Any,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        policy: Policy | None = None,
        verifier: str = "rejection",
    ) -> None:
        sampler = Sampler(temperature, top_k, top_p)
        self._decoding = Decoding(target, drafter, sampler, policy, verifier)
        self._waiting: dict[int, tuple[Request, torch.Generator | None]] = {}
        self._running: dict[int, Running] = {}
        self._traces: dict[int, list[CycleTrace]] = {}
        self._done: dict[int, Generation] = {}
        self._added = 0
        # tokens handed to the target in cycles: anchors and the drafts to verify
        self.verified_tokens = 0
        # the same with padding, rows x longest row: what the pass computed
        self.padded_tokens = 0

    @property
    def running(self) -> list[int]:
        """The numbers of the requests in the batch, in the order of its rows."""
        return list(self._running)

    @property
    def waiting(self) -> list[int]:
        """The numbers of the requests that the next step will read."""
        return list(self._waiting)

    @property
    def committed_tokens(self) -> int:
        """Tokens in the target's caches, over all running requests."""
        return sum(row.session.length for row in self._running.values())

    def add(
        self,
        prompt_ids: Prompt,
        *,
        max_new_tokens: int,
        stop_token_ids: Sequence[int] | None = None,
        generator: Stream = None,
    ) -> int:
        """Queue a request, at any time; return its number.

        The next ``step`` reads the prompt. A bad request is refused here and leaves
        the others alone.
        """
        target = self._decoding.target
        request = make_request(target, prompt_ids, max_new_tokens, stop_token_ids)
        return self.queue(request, generator)

    def queue(self, request: Request, generator: Stream) -> int:
        """Queue a request that has been checked; return its number."""
        stream, number = as_generator(generator), self._added
        self._waiting[number] = request, stream
        self._traces[number] = []
        self._added += 1
        return number

    def step(self) -> dict[int, CycleTrace]:
        """Read new prompts, then take all running requests one cycle further.

        Returns:
            The trace of each request that ran, by its number; empty when nothing is
            left to do. The seconds in a trace are the whole step's.

        Raises:
            Whatever drafter, policy or target raise, and KeyboardInterrupt. The cycle
            is then undone: the generators, the policy's memory, the requests and the
            target's caches are as before, and the next ``step`` tries again. (What a
            request without a generator drew from the global stream stays drawn.)
        """
        self._read_prompts()
        if not self._running:
            return {}
        rows = list(self._running.values())
        traces = dict(zip(self._running, self._cycle(rows), strict=True))
        for number, trace in traces.items():
            self._traces[number].append(trace)
        lengths = [1 + trace.verify_len for trace in traces.values()]
        self.verified_tokens += sum(lengths)
        self.padded_tokens += len(lengths) * max(lengths)
        for number, row in zip(traces, rows, strict=True):
            self._retire(number, row.request)
        return traces

    def cancel(self, number: int) -> None:
        """Drop a request that waits or runs; its result is lost."""
        check_range("number", number, 0, integer=True)
        known = [*self._waiting, *self._running]
        if number not in known:
            expected = f"one of {known}"
            raise problem("number", "name a request in progress", expected, number)
        self._waiting.pop(number, None)
        self._running.pop(number, None)
        self._traces.pop(number)

    def finished(self) -> dict[int, Generation]:
        """Hand over, once, the requests that have ended since the last call."""
        done, self._done = self._done, {}
        return done

    def _read_prompts(self) -> None:
        """Start what waits; a request that asks for nothing never meets a model."""
        for number, (request, generator) in list(self._waiting.items()):
            if request.finish_reason is None:
                with _restored([generator]):
                    self._running[number] = self._decoding.start(request, generator)
            del self._waiting[number]
            self._retire(number, request)

    def _cycle(self, rows: Sequence[Running]) -> list[CycleTrace]:
        """Run one cycle, or none: what breaks off in the middle is undone."""
        policy = copy.deepcopy(self._decoding.policy)
        undo = [row.remember() for row in rows]
        try:
            with _restored([row.generator for row in rows]):
                return self._decoding.cycle(rows)
        except BaseException:  # Ctrl-C, too
            self._decoding.policy = policy
            for undo_row in undo:
                undo_row()
            raise

    def _retire(self, number: int, request: Request) -> None:
        """Take a request that has ended out of the batch, and its caches with it."""
        if request.finish_reason is not None:
            traces = self._traces.pop(number)
            self._done[number] = Generation(
                request.tokens, request.finish_reason, traces
            )
            self._running.pop(number, None)


@contextmanager
def _restored(streams: Sequence[torch.Generator | None]) -> Iterator[None]:
    """Put the streams back where they were if what follows breaks off."""
    states = [(stream, stream.get_state()) for stream in streams if stream is not None]
    try:
        yield
    except BaseException:
        for stream, state in states:
            stream.set_state(state)
        raise


def one_per_prompt(generators: Sequence[Stream] | None, count: int) -> list[Stream]:
    """Return a stream for each prompt.

    >>> one_per_prompt(None, 2)
    [None, None]
    >>> one_per_prompt([1, 2, 3], 2)
    Traceback (most recent call last):
    ValueError: generators must be one per prompt: expected 2, got 3.
    """
    if generators is None:
        return [None] * count
    check_sequence("generators", generators)
    if len(generators) != count:
        raise problem("generators", "be one per prompt", count, len(generators))
    return list(generators)
