"""Text to ids and back, chat templates, end tokens."""

from __future__ import annotations

import gguf
import pytest

from tests.models.tiny_gguf import CHATML, write_tiny_gguf
from workbench.errors import InvalidPromptError, ModelLoadError
from workbench.models.chat_template import ChatTemplate
from workbench.models.gguf_file import GGUFFile
from workbench.models.tokenizer import Tokenizer

TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  two  spaces, a\ttab and\n\n\nnewlines \r\n",
    "In 1969, 3.14159 and 1,000,000",
    "it's we'll they've I'D",
    "naïve café — “quotes” …",
    "日本語のテキスト 한국어 العربية",
    "👩‍👩‍👧‍👦 🇫🇷 e\u0301",
    "def f(x):\n    return x**2  # ok\n",
)


@pytest.fixture(scope="module")
def default_tokenizer(default_model_path):
    return Tokenizer(GGUFFile(default_model_path).metadata)


@pytest.fixture
def make_tokenizer(tmp_path):
    def make(**options):
        write_tiny_gguf(tmp_path / "tiny.gguf", **options)
        return Tokenizer(GGUFFile(tmp_path / "tiny.gguf").metadata)

    return make


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_round_trips_text(default_tokenizer, make_tokenizer, text):
    for tokenizer in (default_tokenizer, make_tokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()


def test_tokenizer_knows_literal_ids_of_the_default_model(default_tokenizer):
    assert default_tokenizer.vocab_size == 49152
    assert default_tokenizer.encode("Hello world") == [19556, 905]
    assert default_tokenizer.encode("<|im_start|>user") == [1, 4093]
    assert default_tokenizer.encode("1969") == [33, 41, 38, 41]
    # The digit step of `smollm` splits any numeric character off. (transformers loses that step when
    # it reads GGUF, so the comparison below holds no such character.)
    assert default_tokenizer.encode(" ½") == [216, 16738]
    assert default_tokenizer.special_token_ids == frozenset(range(17))


def test_tokenizer_decodes_half_a_character_to_the_replacement_character(default_tokenizer):
    ids = default_tokenizer.encode("日")
    assert len(ids) > 1
    assert default_tokenizer.decode(ids[:1]) == "\ufffd"
    assert default_tokenizer.decode(ids) == "日"


@pytest.mark.parametrize("pieces", [[0, 5, 9], [200, 4], [49151, 300, 301, 2]])
def test_tokenizer_decode_agrees_with_the_bytes_of_arbitrary_tokens(default_tokenizer, pieces):
    joined = b"".join(default_tokenizer.token_bytes(i) for i in pieces)
    assert default_tokenizer.decode(pieces, skip_special_tokens=False) == joined.decode("utf-8", errors="replace")


def test_tokenizer_gives_every_token_of_the_default_model_its_bytes(default_tokenizer):
    assert all(default_tokenizer.token_bytes(i) for i in range(default_tokenizer.vocab_size))
    assert default_tokenizer.token_bytes(2) == b"<|im_end|>"


@pytest.mark.parametrize("token_id", [-1, 269])
def test_tokenizer_refuses_an_id_outside_the_vocabulary(make_tokenizer, token_id):
    with pytest.raises(InvalidPromptError, match="ids go from 0 to 268"):
        make_tokenizer().token_bytes(token_id)


def test_tokenizer_skips_special_tokens_on_request(make_tokenizer):
    tokenizer = make_tokenizer()
    ids = [1, *tokenizer.encode("the"), 2]
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>the<|im_end|>"


def test_tokenizer_unites_the_named_eos_with_end_of_turn_tokens(default_tokenizer, make_tokenizer):
    # The file names <|im_end|> (2) only; <|endoftext|> (0) ends an answer too (TRAPS 21).
    assert default_tokenizer.eos_token_ids == {0, 2}
    assert make_tokenizer().eos_token_ids == {0, 2}


def test_tokenizer_adds_bos_only_where_the_file_wants_one(make_tokenizer):
    plain = make_tokenizer().encode("the")
    assert make_tokenizer(add_bos=True).encode("the") == [1, *plain]
    assert make_tokenizer(add_bos=True).encode("the", add_special_tokens=False) == plain


def test_encode_chat_adds_no_second_bos_when_the_template_writes_one(make_tokenizer):
    """TRAPS 24."""
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer = make_tokenizer(add_bos=True, chat_template=template)
    ids = tokenizer.encode_chat([{"role": "user", "content": "the"}])
    assert ids == [1, *tokenizer.encode("the", add_special_tokens=False)]
    assert ids.count(tokenizer.bos_token_id) == 1


def test_encode_chat_ends_with_the_start_of_the_answer(default_tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    text = default_tokenizer.render_chat(messages)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert default_tokenizer.encode_chat(messages) == default_tokenizer.encode(text)
    assert not default_tokenizer.render_chat(messages, add_generation_prompt=False).endswith("assistant\n")


def test_render_chat_says_so_when_there_is_no_template(make_tokenizer):
    tokenizer = make_tokenizer(chat_template=None)
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidPromptError, match="no chat template: send a plain prompt"):
        tokenizer.render_chat([{"role": "user", "content": "Hi"}])


def test_chat_template_passes_on_what_it_refuses():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidPromptError, match="roles must alternate"):
        template.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)


def test_chat_template_cannot_reach_python():
    template = ChatTemplate("{{ messages.__class__.__mro__ }}", {})
    with pytest.raises(InvalidPromptError, match="unsafe"):
        template.render([], add_generation_prompt=True)


@pytest.mark.parametrize("pre_tokenizer", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_tokenizer_keeps_all_bytes_with_every_known_pre_tokenizer(make_tokenizer, pre_tokenizer):
    tokenizer = make_tokenizer(pre_tokenizer=pre_tokenizer)
    text = "It's 1969: naïve\n\n  and the 日本 thing"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("tokenizer.ggml.tokens", "no 'tokenizer.ggml.tokens'"),
        ("tokenizer.ggml.merges", "no 'tokenizer.ggml.merges'"),
        ("tokenizer.ggml.model", "no 'tokenizer.ggml.model'"),
        ("tokenizer.ggml.pre", "pre-tokenizer 'missing' is not known"),
    ],
)
def test_tokenizer_names_a_missing_field(tmp_path, field, message):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    metadata = GGUFFile(tmp_path / "tiny.gguf").metadata
    del metadata[field]
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer(metadata)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tokenizer.ggml.model", "llama", "tokenizer kind 'llama' is not supported"),
        ("tokenizer.ggml.merges", ["t h", "zz qq"], "merges do not fit"),
        ("tokenizer.ggml.merges", ["t h", "one"], "merges do not fit"),
        ("tokenizer.ggml.eos_token_id", 269, "outside the vocabulary of 269 tokens"),
        ("tokenizer.ggml.token_type", [1, 1], "269 tokens but 2 token types"),
    ],
)
def test_tokenizer_refuses_a_corrupt_field(tmp_path, field, value, message):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    metadata = {**GGUFFile(tmp_path / "tiny.gguf").metadata, field: value}
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer(metadata)


@pytest.mark.slow_reference
@pytest.mark.timeout(300)
def test_tokenizer_and_templates_agree_with_transformers(default_model_path, default_tokenizer):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(default_model_path.parent, gguf_file=default_model_path.name)
    for text in TEXTS:
        assert default_tokenizer.encode(text) == reference(text, add_special_tokens=False)["input_ids"], text
    conversations = [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Two\nlines <|im_end|> "}],
        [{"role": role, "content": role} for role in ("user", "assistant", "user")],
    ]
    templates = (
        None,
        CHATML,
        "{%- for m in messages %}\n    {%- if loop.last %}\n{{ m | tojson }}\n    {%- endif %}\n  {% endfor %} end",
        "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endfor %}{{ eos_token }}{{ strftime_now('%Y') }}{{ {'é': '<b>'} | tojson(indent=2) }}",
    )
    special_tokens = {"bos_token": reference.bos_token, "eos_token": reference.eos_token}
    for template in templates:
        for messages in conversations:
            for generate in (True, False):
                if template is None:
                    ours = default_tokenizer.render_chat(messages, add_generation_prompt=generate)
                else:
                    ours = ChatTemplate(template, special_tokens).render(messages, generate)
                theirs = reference.apply_chat_template(
                    messages, chat_template=template, add_generation_prompt=generate, tokenize=False
                )
                assert ours == theirs
        ids = reference.apply_chat_template(conversations[0], add_generation_prompt=True)["input_ids"]
        assert default_tokenizer.encode_chat(conversations[0]) == list(ids)


def test_metadata_reader_yields_plain_python_values(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    metadata = GGUFFile(tmp_path / "tiny.gguf").metadata
    assert metadata["tokenizer.ggml.merges"][0] == "t h"
    assert metadata["llama.context_length"] == 512
    assert gguf.GGUFReader(tmp_path / "tiny.gguf").fields.keys() == metadata.keys()
