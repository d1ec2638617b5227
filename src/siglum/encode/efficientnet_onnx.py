"""EfficientNet-lite for onnxruntime, which runs it on a CPU several times as fast as torch.

The graph is written from the torch model's layers: batch norms are folded into the convolutions before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

BATCH = 4
"""Pictures at a time: the feature maps of more no longer fit a core's cache."""
PIXELS = "pixels"
OPSET, IR = 17, 9


class _Graph:
    """A growing list of nodes; every method adds one and returns the name of its output."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self.make_node, self.to_tensor = helper.make_node, numpy_helper.from_array
        self.nodes: list[Any] = []
        self.constants = [self.to_tensor(np.array(value, np.float32), f"limit{value}") for value in (0, 6)]

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of any kind."""
        output = f"{kind}{len(self.nodes)}"
        self.nodes.append(self.make_node(kind, inputs, [output], **attributes))
        return output

    def clip(self, x: str) -> str:
        """Add the activation ReLU6."""
        return self.add("Clip", x, "limit0", "limit6")

    def convolve(self, x: str, conv: Any, norm: Any) -> str:
        """Add a convolution and the batch norm that follows it."""
        scale_C = norm.weight / (norm.running_var + norm.eps).sqrt()
        bias_C = norm.bias - norm.running_mean * scale_C
        names = []
        for what, value in (("weight", conv.weight * scale_C[:, None, None, None]), ("bias", bias_C)):
            names.append(f"{what}{len(self.nodes)}")
            self.constants.append(self.to_tensor(value.detach().float().cpu().numpy(), names[-1]))
        left, right, top, bottom = getattr(conv.static_padding, "padding", (0, 0, 0, 0))
        shape = {"kernel_shape": conv.kernel_size, "strides": list(conv.stride), "pads": [top, left, bottom, right]}
        return self.add("Conv", x, *names, group=conv.groups, **shape)


def write_graph(model: Any) -> bytes:
    """Return the model up to the average of its last feature map, as a serialised ONNX model."""
    from onnx import TensorProto, helper

    graph = _Graph()
    x = graph.clip(graph.convolve(PIXELS, model._conv_stem, model._bn0))
    for block in model._blocks:
        before, settings = x, block._block_args
        if settings.expand_ratio != 1:
            x = graph.clip(graph.convolve(x, block._expand_conv, block._bn0))
        x = graph.clip(graph.convolve(x, block._depthwise_conv, block._bn1))
        x = graph.convolve(x, block._project_conv, block._bn2)
        if block.id_skip and settings.stride == 1 and settings.input_filters == settings.output_filters:
            x = graph.add("Add", x, before)
    x = graph.clip(graph.convolve(x, model._conv_head, model._bn1))
    x = graph.add("ReduceMean", x, axes=[2, 3], keepdims=0)
    pixels, rows = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in ((PIXELS, ("N", 3, "S", "S")), (x, ("N", "D")))
    )
    whole = helper.make_graph(graph.nodes, "efficientnet-lite", [pixels], [rows], graph.constants)
    content = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    found: bytes = content.SerializeToString()
    return found


def open_session(model: Any) -> Callable[[torch.Tensor], np.ndarray]:
    """Return what makes features (N, D) of planes (N, 3, S, S), on as many threads as torch has."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(write_graph(model), options, providers=["CPUExecutionProvider"])

    def run(planes_N3SS: torch.Tensor) -> np.ndarray:
        parts = [session.run(None, {PIXELS: some.contiguous().numpy()})[0] for some in planes_N3SS.split(BATCH)]
        return np.concatenate(parts)

    return run
