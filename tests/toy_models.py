"""A toy world behind the interfaces of a target and a drafter: exact, no weights."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from dsparkref import MarkovWorld, Proposal, Target
from dsparkref.analysis.toy import best_drafter, rows_along
from dsparkref.verify.sampling import draw_uniforms, probabilities, sample


class WorldModel(nn.Module):
    """A causal LM of transformers' kind whose law is a world's.

    Its cache holds the ids it has read, as keys, so that a rollback that goes wrong
    changes what comes next. So do its hidden states: a drafter can read the text.
    """

    def __init__(self, world: MarkovWorld) -> None:
        super().__init__()
        self.world = world
        self.table = nn.Embedding(world.vocab_size, 1, dtype=torch.float64)
        self.config = SimpleNamespace(num_hidden_layers=1, eos_token_id=None)
        self.generation_config = SimpleNamespace(eos_token_id=None)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.table

    def get_output_embeddings(self) -> nn.Embedding:
        return self.table

    def forward(self, input_ids, *, past_key_values, logits_to_keep=0, **_):
        ids = input_ids.double()[..., None]  # [1, n, 1]
        keys, _ = past_key_values.update(ids[:, None], ids[:, None], 0)  # [1, 1, T, 1]
        text = keys.flatten().long().tolist()
        count = logits_to_keep or input_ids.shape[1]
        ends = range(len(text) - count + 1, len(text) + 1)
        laws = torch.stack([self.world.next_law(text[:end]) for end in ends])
        return SimpleNamespace(logits=laws.log()[None], hidden_states=(ids,))


def world_target(world: MarkovWorld) -> Target:
    return Target(WorldModel(world))


class WorldDrafter:
    """The best drafter of some memory in a world of its own.

    ``texts`` collects what its features say the text is. Its confidence depends on
    the token before, as a head's may.
    """

    def __init__(self, world: MarkovWorld, block_size: int, memory: int | None) -> None:
        self.world, self.block_size, self.memory = world, block_size, memory
        # it taps the embeddings, which here are the ids
        self.spec = SimpleNamespace(target_layer_ids=(-1,), vocab_size=world.vocab_size)
        self.texts: list[list[int]] = []

    def propose(
        self,
        target_hidden: Tensor,
        anchor: Tensor,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        generator: torch.Generator | None,
        cache: None,
    ) -> Proposal:
        text = [*target_hidden.flatten().long().tolist(), int(anchor)]
        self.texts.append(text)
        laws = best_drafter(self.world.block_laws(text, self.block_size), self.memory)
        uniforms = draw_uniforms(
            (1, self.block_size), generator=generator, device="cpu"
        )
        tokens = torch.zeros(1, 0, dtype=torch.long)
        rows = []
        for k in range(self.block_size):
            logits = rows_along(laws[: k + 1], tokens)[:, -1].log()  # [1, V]
            rows.append(logits)
            law = probabilities(logits, temperature, top_k, top_p)
            drawn = sample(law, uniforms[:, k])
            tokens = torch.cat([tokens, drawn[:, None]], dim=1)
        draft_logits = torch.stack(rows, dim=1)  # [1, K, V]
        before = torch.cat([anchor[:, None], tokens[:, :-1]], dim=1)
        return Proposal(
            tokens=tokens,
            p_draft=probabilities(draft_logits, temperature, top_k, top_p),
            draft_logits=draft_logits,
            confidence=torch.tensor([0.9, 0.3]).double()[before % 2],
        )


class Teller:
    """A drafter that may draw by other settings, and tell another law than its own."""

    def __init__(self, drafter, told=None, **drawn_with) -> None:
        self.drafter, self.told, self.drawn_with = drafter, told, drawn_with
        self.block_size, self.spec = drafter.block_size, drafter.spec

    def propose(self, target_hidden, anchor, **options) -> Proposal:
        drawn_with = options | self.drawn_with
        honest = self.drafter.propose(target_hidden, anchor, **drawn_with)
        if self.told is None:
            return honest
        settings = (options[name] for name in ("temperature", "top_k", "top_p"))
        return Proposal(honest.tokens, self.told(honest.draft_logits, *settings))
