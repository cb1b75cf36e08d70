"""Bases that no single device holds: Accelerate's sharding engines, applied to the frozen base alone.

FSDP2 and DeepSpeed ZeRO-3 keep a share of each weight of the base on every process and gather a layer where a
pass needs it. The adapters, a thousandth of the size, stay whole and ordinary tensors on every process:
`torch.autograd.grad` by them, sums over processes, checkpoints and saving are the same with every engine.

A gather is a collective operation: all processes must run the same passes of a sharded model.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from accelerate import Accelerator
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedType,
    FullyShardedDataParallelPlugin,
    disable_fsdp_ram_efficient_loading,
    parse_flag_from_env,
)
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from toolkit.errors import CalibrantError


def check_engine() -> None:
    """Refuses an engine that cannot work; to be called before `Accelerator()`, which fails in other words.

    Raises:
        CalibrantError: The first FSDP was launched, or DeepSpeed that is not installed.
    """
    if parse_flag_from_env("ACCELERATE_USE_FSDP") and os.environ.get("FSDP_VERSION") != "2":
        raise CalibrantError(
            "FSDP1 flattens base and adapters into one tensor; set fsdp_version: 2 in the accelerate config"
        )
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED") and find_spec("deepspeed") is None:
        raise CalibrantError(
            "the accelerate config asks for DeepSpeed, which is not installed; run: pip install deepspeed"
        )


def load_whole() -> None:
    """Has each process load the bases whole; to be called after `Accelerator()`.

    Else transformers, under ZeRO-3, partitions the weights while it loads them, before there are adapters.
    """
    disable_fsdp_ram_efficient_loading()
    unset_hf_deepspeed_config()


def is_sharded(accelerator: Accelerator) -> bool:
    """Says whether `shard_base` will shard the base.

    Raises:
        CalibrantError: The engine that was launched cannot shard a frozen base.
    """
    check_engine()
    return _fsdp_plugin(accelerator) is not None or _deepspeed_plugin(accelerator) is not None


def shard_base(model: PreTrainedModel | PeftModel, accelerator: Accelerator) -> None:
    """Shards the frozen base in place, and puts its shares and the whole adapters on the process's device.

    Without an engine it changes nothing. It comes after all adapters are attached. From then on this model is
    run, never the base inside it by itself, and no process alone calls `state_dict()` before the last pass.

    Args:
        model: The base, on any device, with its adapters if it has any.
        accelerator: Says which engine was launched.

    Raises:
        CalibrantError: The engine cannot shard this base.
    """
    if not is_sharded(accelerator):
        return
    for _, _, module in _adapter_modules(model):
        module.to(accelerator.device)
    if (plugin := _fsdp_plugin(accelerator)) is not None:
        _fully_shard(model, accelerator, plugin)
    else:
        _partition(model, accelerator, _deepspeed_plugin(accelerator))


def _fsdp_plugin(accelerator: Accelerator) -> Any:
    """Returns Accelerate's settings of FSDP2, or None where it was not launched."""
    if accelerator.distributed_type == DistributedType.FSDP:
        plugin = accelerator.state.fsdp_plugin
    elif _on_cpus(accelerator) and parse_flag_from_env("ACCELERATE_USE_FSDP"):
        plugin = FullyShardedDataParallelPlugin()  # on CPUs Accelerate reads the settings and drops them
    else:
        return None
    if plugin.activation_checkpointing:
        raise CalibrantError(
            "fsdp_activation_checkpointing renames layers, under whose names adapters are saved; set it to "
            "false in the accelerate config, and use the recipe's own checkpointing"
        )
    return plugin


def _deepspeed_plugin(accelerator: Accelerator) -> Any:
    """Returns Accelerate's settings of ZeRO-3, or None where DeepSpeed was not launched."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        plugin = accelerator.state.deepspeed_plugin
    elif _on_cpus(accelerator) and parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        plugin = DeepSpeedPlugin()
    else:
        return None
    if int(plugin.zero_stage) != 3:
        raise CalibrantError(
            f"ZeRO stage {plugin.zero_stage} shards gradients and optimizer states, and a frozen base has "
            "none; set zero_stage: 3 in the accelerate config, or launch plain data parallelism"
        )
    return plugin


def _on_cpus(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.MULTI_CPU


def _adapter_modules(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Returns the modules that PEFT has added: (adapted layer, name in it, module)."""
    return [
        (layer, name, module)
        for layer in model.modules()
        for name, module in layer.named_children()
        if name.startswith("lora_")
    ]


def _fully_shard(model: nn.Module, accelerator: Accelerator, plugin: Any) -> None:
    """Turns the base's weights into DTensors, one group a layer."""
    packed = {p.dtype for p in model.parameters() if type(p).__name__ == "Params4bit"}
    if not all(dtype.is_floating_point for dtype in packed):
        raise CalibrantError(
            "FSDP2 cannot shard 4-bit weights packed into integers; start from the base that is not "
            "quantized, which is then packed into a floating type, or launch with ZeRO-3"
        )
    plugin.ignored_modules = [module for _, _, module in _adapter_modules(model)]
    plugin.cpu_ram_efficient_loading = False  # it would make DTensors of the adapters too
    plugin.mixed_precision_policy = None  # it would cast packed 4-bit values as if they were numbers
    accelerator.state.fsdp_plugin = plugin
    fsdp2_prepare_model(accelerator, model)


def _partition(model: nn.Module, accelerator: Accelerator, plugin: Any) -> None:
    """Partitions the base's weights and hooks their gathering into its layers.

    DeepSpeed's engine is left out: it would take the adapters too, and the base to one device first.
    """
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.utils.timer import NoopTimer

    deepspeed.init_distributed(auto_mpi_discovery=False)  # over the process group that Accelerate has made
    settings = {
        key: value
        for key, value in plugin.deepspeed_config["zero_optimization"].items()
        if value != "auto" and key != "offload_optimizer"
    }
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": settings}
    zero = DeepSpeedConfig(config).zero_config
    for buffer in model.buffers():
        buffer.data = buffer.to(accelerator.device)
    for parameter in model.parameters():
        scales = getattr(parameter, "quant_state", None)  # of a 4-bit weight
        if scales is not None:
            scales.to(accelerator.device)
    with _without_adapters(model):
        DeepSpeedZeRoOffload(
            model,
            timers=NoopTimer(),
            ds_config=config,
            overlap_comm=bool(zero.overlap_comm),
            prefetch_bucket_size=zero.prefetch_bucket_size,
            max_reuse_distance=zero.max_reuse_distance,
            max_live_parameters=zero.max_live_parameters,
            param_persistence_threshold=zero.param_persistence_threshold,
            model_persistence_threshold=zero.model_persistence_threshold,
            offload_param_config=zero.offload_param,
        )


@contextmanager
def _without_adapters(model: nn.Module) -> Iterator[None]:
    """Takes the adapters off, so that what is done to all of the model is done to the base alone."""
    taken = _adapter_modules(model)
    for layer, name, _ in taken:
        delattr(layer, name)
    try:
        yield
    finally:
        for layer, name, module in taken:
            layer.add_module(name, module)
