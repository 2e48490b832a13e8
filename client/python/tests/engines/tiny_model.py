"""A tiny random model with its tokenizer, for engines to load: as safetensors, and as GGUF."""

import json
import pathlib
import tempfile

VOCABULARY = 512


def make_for(test_class):
    """Its path, alone in a folder that is there for as long as the class's tests run."""
    folder = tempfile.TemporaryDirectory()
    test_class.addClassCleanup(folder.cleanup)
    path = pathlib.Path(folder.name) / "tiny"
    make(path)
    return path


def make(folder):
    """Writes config, weights (float32) and tokenizer. Seeded."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<pad>", "<bos>", "<eos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([pathlib.Path(__file__).read_text()] * 2, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        # Wide enough for the next token to matter: with the default all distributions are alike.
        initializer_range=0.15, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)


def write_gguf(folder, file):
    """The same model for llama.cpp, in float32."""
    import gguf
    import numpy as np
    from safetensors import safe_open

    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    tokenizer = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    # Fills the vocabulary: the corpus has no more merges.
    tokens += [f"<unused-{number}>" for number in range(len(tokens), VOCABULARY)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = 3, 1
    writer.add_token_types([control if number < 3 else normal for number in range(VOCABULARY)])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for layer in range(config["num_hidden_layers"]):
        for name, of_gguf in parts.items():
            names[f"model.layers.{layer}.{name}.weight"] = f"blk.{layer}.{of_gguf}.weight"
    with safe_open(str(pathlib.Path(folder) / "model.safetensors"), "np") as weights:
        for name in weights.keys():
            writer.add_tensor(names[name], weights.get_tensor(name).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
