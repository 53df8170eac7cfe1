"""Peer models of the same sizes as ours, for `train_speed.py`."""


def peer(task, kind, size):
    """A model, and a function of it and a batch: logits and targets, -100 where padded."""
    return {
        ("translator", "torch.nn"): torch_translator,
        ("translator", "transformers"): marian,
        ("translator", "x-transformers"): x_translator,
        ("language", "transformers"): gpt2,
        ("language", "x-transformers"): x_language,
        ("vision", "torch.nn"): torch_vit,
        ("vision", "transformers"): hf_vit,
        ("vision", "x-transformers"): x_vit,
    }[task, kind](size)


def torch_translator(size):
    import torch
    from torch import nn

    from regard.ops import sinusoidal

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(size.vocab, size.dim)
            nn.init.normal_(self.table.weight, std=size.dim**-0.5)
            self.body = nn.Transformer(
                size.dim, size.heads, size.layers, size.layers, 4 * size.dim, 0.1, batch_first=True
            )
            self.body.encoder.enable_nested_tensor = False
            for layer in (*self.body.encoder.layers, *self.body.decoder.layers):
                layer.dropout = nn.Identity()  # dropout only after each sublayer, as in ours
                layer.self_attn.dropout = 0.0
                if hasattr(layer, "multihead_attn"):
                    layer.multihead_attn.dropout = 0.0
            self.drop = nn.Dropout(0.1)
            code = sinusoidal(torch.arange(512), size.dim).float()
            self.register_buffer("code", code, persistent=False)
            self.register_buffer("future", torch.triu(torch.ones(512, 512) > 0, 1), False)

        def embed(self, tokens):
            x = self.table(tokens) * size.dim**0.5
            return self.drop(x + self.code[: tokens.shape[1]])

        def forward(self, source, target, padded):
            n = target.shape[1]
            x = self.body(
                self.embed(source), self.embed(target), tgt_mask=self.future[:n, :n],
                src_key_padding_mask=padded, memory_key_padding_mask=padded, tgt_is_causal=True,
            )  # fmt: skip
            return x @ self.table.weight.T

    def call(model, batch):
        source, target = batch["source"], batch["target"]
        padded = _positions(source) >= batch["source_lengths"][:, None]
        return model(source, target[:, :-1], padded), _targets(batch)

    return Model(), call


def marian(size):
    from transformers import MarianConfig, MarianMTModel

    model = MarianMTModel(
        MarianConfig(
            vocab_size=size.vocab, d_model=size.dim, encoder_layers=size.layers,
            decoder_layers=size.layers, encoder_attention_heads=size.heads,
            decoder_attention_heads=size.heads, encoder_ffn_dim=4 * size.dim,
            decoder_ffn_dim=4 * size.dim, activation_function="relu", dropout=0.1,
            scale_embedding=True, max_position_embeddings=512, pad_token_id=0, eos_token_id=2,
            decoder_start_token_id=1, attn_implementation="sdpa",
        )
    )  # fmt: skip

    def call(model, batch):
        mask = (_positions(batch["source"]) < batch["source_lengths"][:, None]).long()
        outputs = model(
            input_ids=batch["source"], attention_mask=mask, use_cache=False,
            decoder_input_ids=batch["target"][:, :-1],
        )  # fmt: skip
        return outputs.logits, _targets(batch)

    return model, call


def gpt2(size):
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, dim, heads, vocab, _, time_ = size.language
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=time_, n_embd=dim, n_layer=layers, n_head=heads,
            bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
        )
    )  # fmt: skip

    def call(model, batch):
        tokens = batch["tokens"]
        return model(tokens[:, :-1], use_cache=False).logits, tokens[:, 1:]

    return model, call


def torch_vit(size):
    import torch
    from torch import nn

    layers, dim, heads, image, patch, _ = size.vision

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, dim, patch, patch)
            self.cls = nn.Parameter(torch.zeros(1, 1, dim))
            self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim) * 0.02)
            layer = nn.TransformerEncoderLayer(
                dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
            )
            body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(dim), False)
            self.body, self.head = body, nn.Linear(dim, 1000)

        def forward(self, pixels):
            x = self.patches(pixels).flatten(2).mT
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
            return self.head(self.body(x)[:, 0])

    return Model(), lambda model, batch: (model(batch["pixels"]), batch["label"])


def hf_vit(size):
    from transformers import ViTConfig, ViTForImageClassification

    layers, dim, heads, image, patch, _ = size.vision
    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=4 * dim, image_size=image, patch_size=patch, num_labels=1000,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )
    )  # fmt: skip
    return model, lambda model, batch: (model(batch["pixels"]).logits, batch["label"])


def x_translator(size):
    from torch import nn
    from x_transformers import Decoder, Encoder, TransformerWrapper

    options = {"depth": size.layers, "heads": size.heads, "pre_norm": False, "attn_flash": True}
    options |= {"attn_sublayer_dropout": 0.1, "ff_sublayer_dropout": 0.1}
    embedding = {"num_tokens": size.vocab, "max_seq_len": 512, "emb_dropout": 0.1}
    embedding |= {"scaled_sinu_pos_emb": True}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            body = Encoder(dim=size.dim, **options)
            self.encoder = TransformerWrapper(attn_layers=body, return_only_embed=True, **embedding)
            body = Decoder(dim=size.dim, cross_attend=True, **options)
            self.decoder = TransformerWrapper(attn_layers=body, tie_embedding=True, **embedding)
            self.decoder.token_emb = self.encoder.token_emb

        def forward(self, source, target, real):
            memory = self.encoder(source, mask=real, return_embeddings=True)
            return self.decoder(target, context=memory, context_mask=real)

    def call(model, batch):
        real = _positions(batch["source"]) < batch["source_lengths"][:, None]
        return model(batch["source"], batch["target"][:, :-1], real), _targets(batch)

    return Model(), call


def x_language(size):
    from x_transformers import Decoder, TransformerWrapper

    layers, dim, heads, vocab, _, time_ = size.language
    body = Decoder(
        dim=dim, depth=layers, heads=heads, attn_flash=True, attn_dropout=0.1,
        attn_sublayer_dropout=0.1, ff_sublayer_dropout=0.1,
    )  # fmt: skip
    model = TransformerWrapper(
        num_tokens=vocab, max_seq_len=time_, emb_dropout=0.1, tie_embedding=True, attn_layers=body
    )

    def call(model, batch):
        tokens = batch["tokens"]
        return model(tokens[:, :-1]), tokens[:, 1:]

    return model, call


def x_vit(size):
    from x_transformers import Encoder, ViTransformerWrapper

    layers, dim, heads, image, patch, _ = size.vision
    body = Encoder(dim=dim, depth=layers, heads=heads, attn_flash=True)
    # mean pooling needs no class token, but 196 tokens instead of 197 would be less work
    model = ViTransformerWrapper(
        image_size=image, patch_size=patch, num_classes=1000, attn_layers=body,
        num_register_tokens=1,
    )  # fmt: skip
    return model, lambda model, batch: (model(batch["pixels"]), batch["label"])


def _positions(tokens):
    import torch

    return torch.arange(tokens.shape[1], device=tokens.device)


def _targets(batch):
    target = batch["target"][:, 1:]
    return target.masked_fill(_positions(target) + 1 >= batch["target_lengths"][:, None], -100)
