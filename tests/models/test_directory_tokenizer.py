"""Tokenizers of directories: what transformers reads, behind our interface."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.models.test_tokenizer import TEXTS
from tests.models.tiny_directory import write_byte_level_tokenizer, write_sentencepiece_tokenizer
from workbench.errors import ModelLoadError
from workbench.models.config import ModelConfig
from workbench.models.directory_tokenizer import read_directory_tokenizer
from workbench.models.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "in the end"}, {"role": "assistant", "content": "and"}]


def read(path, vocab_size=280, eos_token_ids=frozenset()):
    config = ModelConfig(
        name="tiny",
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        max_position_embeddings=128,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_ids=eos_token_ids,
    )
    return Tokenizer(read_directory_tokenizer(path, config))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    path = tmp_path_factory.mktemp("byte_level")
    theirs = write_byte_level_tokenizer(path, adds_bos=True)
    return read(path), theirs


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentencepiece")
    theirs = write_sentencepiece_tokenizer(path)
    return read(path), theirs


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_tokenizer_equals_transformers_and_round_trips(byte_level, text):
    ours, theirs = byte_level
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text) == theirs.encode(text) == [1, *ids]
    assert ours.decode(ids) == text
    assert b"".join(ours.token_bytes(i) for i in ids) == text.encode()


def test_byte_level_tokenizer_has_literal_bytes_and_special_tokens(byte_level):
    tokenizer, _ = byte_level
    assert tokenizer.vocab_size == 280
    assert tokenizer.encode("the and", add_special_tokens=False) == [260, 266]
    assert (tokenizer.token_bytes(266), tokenizer.token_bytes(3 + 0xE6)) == (b" and", b"\xe6")
    assert (tokenizer.token_bytes(1), tokenizer.token_bytes(268), tokenizer.token_bytes(279)) == (
        b"<|im_start|>",
        b"re",
        b"",
    )
    assert (tokenizer.bos_token_id, tokenizer.special_token_ids) == (1, {0, 1, 2})
    assert tokenizer.decode([1, 260, 2]) == "the"
    assert tokenizer.decode([1, 260, 2], skip_special_tokens=False) == "<|im_start|>the<|im_end|>"


def test_sentencepiece_tokenizer_has_literal_ids_and_bytes(sentencepiece):
    tokenizer, theirs = sentencepiece
    ids = tokenizer.encode("hi hi é")
    assert ids == theirs.encode("hi hi é") == [1, 263, 263, 259, 3 + 0xC3, 3 + 0xA9]
    assert [tokenizer.token_bytes(i) for i in ids[1:]] == [b" hi", b" hi", b" ", b"\xc3", b"\xa9"]
    # A piece of text does not depend on coming first, so the space before the first word stays.
    assert tokenizer.decode(ids) == " hi hi é"
    assert theirs.decode(ids, skip_special_tokens=True) == "hi hi é"
    assert tokenizer.special_token_ids == {0, 1, 2}


def test_chat_prompt_equals_that_of_transformers(byte_level):
    ours, theirs = byte_level
    rendered = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert ours.render_chat(MESSAGES) == rendered
    assert ours.encode_chat(MESSAGES) == theirs.apply_chat_template(MESSAGES, add_generation_prompt=True).input_ids
    assert ours.render_chat(MESSAGES, add_generation_prompt=False) == rendered.removesuffix("<|im_start|>assistant\n")


def test_trap_24_templated_prompt_gets_no_second_bos(sentencepiece):
    tokenizer, _ = sentencepiece
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.encode("hi") == [1, 263]
    assert tokenizer.render_chat(messages) == "<s>hi"
    assert tokenizer.encode_chat(messages).count(1) == 1


def test_tokenizer_without_a_template_says_so(tmp_path):
    write_byte_level_tokenizer(tmp_path, chat_template=None)
    assert not read(tmp_path).has_chat_template


def test_trap_21_end_tokens_of_configuration_and_tokenizer_are_united(tmp_path):
    write_byte_level_tokenizer(tmp_path)
    assert read(tmp_path, eos_token_ids=frozenset({0, 77})).eos_token_ids == {0, 2, 77}


def test_encoding_ignores_truncation_and_padding_of_the_files(tmp_path):
    write_byte_level_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert len(read(tmp_path).encode("0123456789")) == 10


def test_threads_may_encode_at_once(byte_level):
    tokenizer, _ = byte_level
    text = "the end and the rest " * 50
    expected = tokenizer.encode(text)
    with ThreadPoolExecutor(4) as pool:
        assert all(ids == expected for ids in pool.map(tokenizer.encode, [text] * 40))


def test_vocabulary_of_the_model_bounds_that_of_the_tokenizer(tmp_path):
    write_byte_level_tokenizer(tmp_path)
    assert read(tmp_path, vocab_size=200).vocab_size == 200
    with pytest.raises(ModelLoadError, match="eos_token_id = 2 is outside the vocabulary of 2 tokens"):
        read(tmp_path, vocab_size=2)


def test_directory_without_tokenizer_files_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match=r"its tokenizer cannot be read .*: fetch the model again with its token"):
        read(tmp_path)


def test_broken_tokenizer_file_is_refused(tmp_path):
    write_byte_level_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(ModelLoadError, match="its tokenizer cannot be read"):
        read(tmp_path)


def test_broken_chat_template_is_refused(tmp_path):
    write_byte_level_tokenizer(tmp_path, chat_template="{% for message in %}")
    with pytest.raises(ModelLoadError, match="chat template is not valid"):
        read(tmp_path)


def test_tokenizer_of_another_kind_is_refused_by_name(tmp_path):
    write_byte_level_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["decoder"], content["pre_tokenizer"] = (
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Whitespace"},
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=r"its decoder \(Whitespace, WordPiece\) is neither byte-level nor"):
        read(tmp_path)
