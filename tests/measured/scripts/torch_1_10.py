"""What a training step of torch 1.10 held and one of torch 2 does not, for scripts that were measured with it.

- `zero_grad` set gradients to zero and kept them: `set_to_none` became the default in 2.0.
- softmax kept its input beside its output until 1.11 (github.com/pytorch/pytorch/pull/65242).
"""

from functools import partial

import torch


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):
        y = torch._softmax(x, dim, False)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, y, ctx.dim, x.dtype), None


def _softmax(x, dim=None, _stacklevel=3, dtype=None):
    wide = x.float() if torch.is_autocast_enabled() else x  # autocast's list, as in 1.10
    return _Softmax.apply(wide, dim)


def hold_as_then(model):
    model.zero_grad = partial(model.zero_grad, set_to_none=False)
    torch.nn.functional.softmax = _softmax
