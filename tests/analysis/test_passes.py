"""What is timed: the passes that the names say, over the right tokens."""

import pytest
from tiny_models import tiny_drafter, tiny_target

from dsparkref.analysis import passes


def test_the_passes_are_those_that_are_named(monkeypatch):
    target = tiny_target()
    drafter = tiny_drafter(target, "markov", block_size=4, target_layer_ids=(0,))
    seen: list[tuple[str, int, int]] = []
    forward, backbone = target.forward, drafter.backbone.forward

    def watched_target(ids, *args, **options):
        seen.append(("target", ids.shape[1], options["cache"].get_seq_length()))
        return forward(ids, *args, **options)

    def watched_backbone(block, context, positions, masks=None):
        seen.append(("backbone", block.shape[1], int(positions[0, 0])))
        return backbone(block, context, positions, masks)

    monkeypatch.setattr(target, "forward", watched_target)
    monkeypatch.setattr(drafter.backbone, "forward", watched_backbone)
    found = passes.compare_passes(target, drafter, context=5, repeats=1)
    assert list(found) == ["target", "draft backbone"]
    assert all(seconds > 0 for pair in found.values() for seconds in pair)
    once = [("target", 1, 5), ("target", 1, 6), ("target", 1, 7), ("target", 1, 8)]
    read = [("target", 5, 0)]
    runs = 3  # two are not counted
    expected = read + runs * once + read + runs * [("target", 4, 5)]
    expected += runs * [("backbone", 1, 5 + k) for k in range(4)]
    expected += runs * [("backbone", 4, 5)]
    assert seen == expected


@pytest.mark.parametrize("name", ["context", "repeats"])
def test_bad_input_is_named(name, no_shape_checks):
    target = tiny_target()
    drafter = tiny_drafter(target, "dflash", target_layer_ids=(0,))
    with pytest.raises(ValueError, match=f"{name} must be in range"):
        passes.compare_passes(target, drafter, **{name: 0})
