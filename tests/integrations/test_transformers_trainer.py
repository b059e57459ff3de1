"""Adapter to the trainer of transformers: the loss of CLIP, and training steps."""

import pytest
import torch

import contraport
from contraport.integrations import TrainerLoss
from tests.errors import raises_usage_error

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def clip():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": 20, "max_position_embeddings": 6, "eos_token_id": 19, "bos_token_id": 0}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**size, "image_size": 8, "patch_size": 4}, projection_dim=8
    )
    return transformers.CLIPModel(config)


def items(number=12):
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "pixel_values": torch.randn(3, 8, 8, generator=generator),
            "input_ids": torch.randint(1, 19, (6,), generator=generator),
            "labels": torch.tensor(i % 3),
        }
        for i in range(number)
    ]


def unlabelled(number=12):
    return [{name: value for name, value in item.items() if name != "labels"} for item in items(number)]


def collate_items(batch):
    return {name: torch.stack([item[name] for item in batch]) for name in batch[0]}


def gradient(network, value):
    network.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def test_loss_matches_clip_of_transformers():
    network = clip()
    reference = network(**collate_items(unlabelled()), return_loss=True)
    loss = TrainerLoss(logit_scale=network.logit_scale)
    assert not list(loss.parameters())
    value = loss(network(**collate_items(unlabelled())))
    torch.testing.assert_close(value, reference.loss, rtol=1e-5, atol=1e-6)
    result = gradient(network, value)
    torch.testing.assert_close(result, gradient(network, reference.loss), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("grad_accum_steps", [1, 2])
def test_step_of_the_trainer(grad_accum_steps, labelled, tmp_path):
    """The step is that of the mean loss for any number of accumulated batches."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    network, dataset = clip(), items() if labelled else unlabelled()
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path, per_device_train_batch_size=6, gradient_accumulation_steps=grad_accum_steps, max_steps=1,
        learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", report_to=[], use_cpu=True, seed=0,
        max_grad_norm=0, save_strategy="no", remove_unused_columns=False,
    )  # fmt: skip
    objective = contraport.info_nce(temperature=0.2, target=contraport.Labels() if labelled else None)
    batches = []

    def collate(batch):
        batches.append(collate_items(batch))
        return dict(batches[-1])

    # the trainer regards this model as one without a loss of its own
    before = {name: value.clone() for name, value in network.state_dict().items()}
    trainer = transformers.Trainer(
        network, arguments, train_dataset=dataset, data_collator=collate,
        compute_loss_func=TrainerLoss(objective, arguments=arguments),
    )  # fmt: skip
    trainer.train()
    expected = clip()
    expected.load_state_dict(before)
    mean = torch.stack(
        [
            objective(
                out.image_embeds, out.text_embeds, **objective.without_unread_labels({"labels": batch.get("labels")})
            )
            for batch in batches[:grad_accum_steps]
            for out in [expected(**{name: value for name, value in batch.items() if name != "labels"})]
        ]
    ).mean()
    mean.backward()
    for name, parameter in expected.named_parameters():
        after_step = parameter if parameter.grad is None else parameter - 0.1 * parameter.grad
        torch.testing.assert_close(network.get_parameter(name), after_step, rtol=1e-4, atol=1e-6)


def test_one_view_with_labels():
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(0)
    network, labels = transformers.BertModel(config).eval(), torch.arange(12) % 3
    out = network(input_ids=collate_items(items())["input_ids"])
    value = TrainerLoss(contraport.sup_con(), outputs=["pooler_output"])(out, labels)
    torch.testing.assert_close(value, contraport.sup_con()(out.pooler_output, labels=labels))
    with raises_usage_error("outputs.unknown", "'pooler_output'", "['image_embeds'"):
        TrainerLoss()(out)
