"""In flash-attention's place on CPUs, for tests: the attention of sequences that stand one after the other
without padding, and what verl's sequence parallelism asks gloo for. To be used with attn_implementation
"packed", after `install`."""

import torch


def install():
    """Once per process, after verl's environment is set."""
    from transformers import AttentionInterface
    from transformers.integrations import flash_attention
    from verl.models.transformers import monkey_patch

    # It calls the function that verl wraps with its all-to-all, which calls the replacement of the kernel.
    AttentionInterface.register("packed", flash_attention.flash_attention_forward)
    monkey_patch._flash_attention_forward = _attend
    torch.distributed.all_to_all = _all_to_all


def _attend(query, key, value, attention_mask, query_length, *, position_ids, softmax_scale, is_causal, **others):
    """[1, n, heads, d] of queries [1, n, heads, d], and keys and values with fewer heads. A sequence begins
    where position_ids, [1, n], are 0."""
    if attention_mask is not None or not is_causal or others.get("dropout") or others.get("sliding_window"):
        raise NotImplementedError
    sequence = (position_ids[0] == 0).cumsum(0)
    seen = (sequence[:, None] == sequence) & torch.ones(query_length, query_length, dtype=torch.bool).tril()
    heads_first = (states.transpose(1, 2) for states in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=seen, scale=softmax_scale, enable_gqa=True
    ).transpose(1, 2)


def _all_to_all(outputs, inputs, group=None, async_op=False):
    """torch.distributed's, of tensors of one shape: gloo has that of one tensor only."""
    received = torch.empty_like(torch.stack(outputs))
    torch.distributed.all_to_all_single(received, torch.stack(inputs), group=group)
    for output, of_rank in zip(outputs, received):
        output.copy_(of_rank)
