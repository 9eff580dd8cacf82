"""A GPU that is not there: tensors that say they are on one, and keep to its rules.

Inside ``pretend_gpu()`` the package's "auto" device is one named "pretend". Its numbers
are held and computed on the CPU, but an operation between them and a CPU tensor fails,
as does a generator of the CPU that is to fill them, or NumPy that is to read them: code
that mixes devices is found where there is no GPU. What a real one rounds, takes and
needs is not.

As a script it runs a command of the package, or the source of a notebook, there:

    python tests/pretend_gpu.py generate Hello
    python tests/pretend_gpu.py notebooks/src/04_inside_dflash.py
"""

import functools
import importlib
import pkgutil
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretend"
# How torch, in newer versions, lets Python stand in for a device's library.
REGISTRATION = "_setup_privateuseone_for_python_backend"
needs_registration = pytest.mark.skipif(
    not hasattr(backend_registration, REGISTRATION),
    reason="a newer torch lets Python pretend a device",
)
CPU = torch.device("cpu")
aten = torch.ops.aten

# May bring tensors of both devices together.
COPIES = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.to.device,
    aten.to.dtype_layout,
}
# Read or write a tensor of the GPU at places that a CPU tensor names.
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# Take no 0-dim tensor of the CPU, as others do, who read a number from it.
JOINING = {aten.cat.default, aten.stack.default}


class MixedDevices(RuntimeError):
    """What a GPU would have refused."""


class OnGPU(Tensor):
    """A tensor of the pretended device, around the CPU tensor that holds it."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGPU":
        # A view is a tensor of inference mode where what it shows is one.
        with torch.inference_mode(held.is_inference()):
            self = Tensor._make_wrapper_subclass(
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=held.device,
                requires_grad=held.requires_grad,
                dispatch_device=True,  # `.device` asks `compute`
            )
        self.held = held
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    # Torch does the first two for its own class alone, the third unseen by dispatch.
    def tolist(self):
        return self.held.tolist()

    def __format__(self, how: str) -> str:
        return self.held.__format__(how)

    def new_tensor(self, data, *, dtype=None, device=None):
        made = torch.tensor(data, dtype=dtype or self.dtype)
        return made.to(self.device if device is None else device)

    def numpy(self, **options):
        raise TypeError(f"can't convert {self.device} device type tensor to numpy.")

    def __repr__(self) -> str:
        return f"{self.held!r} on {self.device}"


def compute(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Check an operation's devices, run it on the CPU, and say where the result is."""
    if func is torch.ops.prim.device.default:
        return gpu()
    tensors: list[Tensor] = []
    named: list[torch.device] = []
    streams: list[torch.Generator] = []

    def on_cpu(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            return leaf.held if isinstance(leaf, OnGPU) else leaf
        if isinstance(leaf, torch.device):
            named.append(leaf)
            return CPU if leaf.type == NAME else leaf
        if isinstance(leaf, torch.Generator):
            streams.append(leaf)
        return leaf

    plain = _each(on_cpu, args)
    options = {name: _each(on_cpu, value) for name, value in kwargs.items()}
    _check_one_device(func, args, tensors)
    if func is aten.copy_.default:
        here = isinstance(args[0], OnGPU)
    elif named:
        here = named[0].type == NAME
    else:
        here = any(isinstance(tensor, OnGPU) for tensor in tensors)
    if here and streams:
        raise MixedDevices(f"{func}: expected a generator of {gpu()}, got the CPU's")
    result = REPLACED.get(func, func)(*plain, **options)
    written = [
        arg
        for arg, declared in zip(args, func._schema.arguments, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
    ]
    if written:
        return written[0]
    return _each(_on_gpu, result) if here else result


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_each(change, part) for part in value)
    return change(value)


def _on_gpu(value: Any) -> Any:
    return OnGPU(value) if isinstance(value, Tensor) else value


def _check_one_device(func: Any, args: Sequence[Any], tensors: list[Tensor]) -> None:
    if func in COPIES or (func in INDEXING and isinstance(args[0], OnGPU)):
        return
    kinds = {
        isinstance(tensor, OnGPU)
        for tensor in tensors
        if isinstance(tensor, OnGPU) or tensor.dim() or func in JOINING
    }
    if len(kinds) > 1:
        raise MixedDevices(f"{func}: expected all tensors to be on the same device")


def _gru_cell(inputs, hidden, state, input_bias=None, hidden_bias=None):
    """Compute what GPUs fuse: gates in the order reset, update, new."""
    if input_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    parts = zip(inputs.chunk(3, -1), hidden.chunk(3, -1), strict=True)
    (reset_in, reset), (update_in, update), (new_in, new) = parts
    reset, update = torch.sigmoid(reset_in + reset), torch.sigmoid(update_in + update)
    new = torch.tanh(new_in + reset * new)
    return new + update * (state - new), torch.empty(0)


# Operations that the CPU lacks, by hand.
REPLACED = {aten._thnn_fused_gru_cell.default: _gru_cell}


class _Dispatch(TorchDispatchMode):
    """Sees what makes tensors from none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """``torch.tensor`` makes its tensor where no dispatch mode sees it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, device = dict(kwargs or {}), None
        if func in (torch.tensor, torch.as_tensor):
            device = kwargs.pop("device", None)
        made = func(*args, **kwargs)
        return made if device is None else made.to(device)


class _Backend:
    """What torch asks of a backend; nobody is to find an accelerator in it."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None:
        """Nothing is drawn there."""

    def get_rng_state(self, device: Any) -> Tensor:
        return torch.empty(0)

    def set_rng_state(self, state: Tensor, device: Any) -> None:
        """Nothing was kept."""

    def _is_in_bad_fork(self) -> bool:
        return False


@functools.cache
def gpu() -> torch.device:
    """Return the pretended device; torch knows of it from the first call on."""

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return False

        def is_built(self) -> bool:
            return True

        def has_primary_context(self, index: int) -> bool:
            return True

    register = getattr(backend_registration, REGISTRATION)
    register(NAME, backend_module=_Backend(), hook=Hooks())
    return torch.device(NAME, 0)


def _stays_in_place(
    known: Callable[..., bool], parameter: Tensor, moved: Tensor
) -> bool:
    """Whether a parameter that moved may stay the same object: not to our class."""
    if isinstance(parameter, OnGPU) and isinstance(moved, OnGPU):
        return parameter.held.data_ptr() == moved.held.data_ptr()
    return not isinstance(moved, OnGPU) and known(parameter, moved)


@contextmanager
def pretend_gpu(dtype: torch.dtype = torch.float32) -> Iterator[torch.device]:
    """Make "auto" the pretended device, and ``dtype`` what it loads weights as."""
    import dsparkref
    from dsparkref.checkpoints import targets

    here, known, usual = gpu(), targets.resolve_device, targets.auto_dtype
    changed = {
        known: lambda device: here if device in ("auto", here) else known(device),
        usual: lambda device: dtype if device == here else usual(device),
    }
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(dsparkref.__path__, "dsparkref.")
        if not found.name.endswith("__main__")
    ]
    patches = [
        mock.patch.object(module, name, changed[value])
        for module in modules
        for name, value in vars(module).items()
        if value is known or value is usual
    ]
    alike = torch._has_compatible_shallow_copy_type
    in_place = functools.partial(_stays_in_place, alike)
    patches.append(mock.patch.object(torch, alike.__name__, in_place))
    try:
        for patch in patches:
            patch.start()
        with _Dispatch(), _Functions():
            yield here
    finally:
        for patch in patches:
            patch.stop()


def run_there(*arguments: str | Path, folder: Path) -> str:
    """Run this file as a script in ``folder``; return what it printed."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def main(arguments: list[str]) -> None:
    """Run a notebook's source or a command; for a process of its own."""
    from accelerate import PartialState

    with pretend_gpu(torch.bfloat16) as here:  # what most GPUs would take
        PartialState(cpu=True).device = here  # Accelerate knows no such device
        if arguments[0].endswith(".py"):
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            from dsparkref.cli import app

            app(arguments, standalone_mode=False)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(sys.argv[1:])
