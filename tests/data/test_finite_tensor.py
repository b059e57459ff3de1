"""Conversion of array-likes of any memory layout to tensors."""

import warnings

import numpy as np
import pytest
import torch

from contraport.data.array_datasets import as_finite_float64

ROWS = np.arange(12.0).reshape(4, 3)


@pytest.fixture
def _torch_warnings_are_errors():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once in a process
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("_torch_warnings_are_errors")
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), slice(None, None, 2)])
@pytest.mark.parametrize("writable", [True, False])
def test_converts_arrays_of_any_memory_layout(dtype, order, writable):
    array = ROWS.astype(dtype)[order]
    array.flags.writeable = writable
    assert np.array_equal(as_finite_float64("X", array).numpy(), ROWS[order])
    assert array.flags.writeable == writable


@pytest.mark.usefixtures("_torch_warnings_are_errors")
def test_converts_data_frames():
    pd = pytest.importorskip("pandas")
    assert np.array_equal(as_finite_float64("X", pd.DataFrame(ROWS)).numpy(), ROWS)
