"""Modules that are loaded when something of them is first used (spark_jobs/late_modules.py)."""

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from spark_jobs.late_modules import late

EXAMPLE = {"lockstep_late_example": lambda: import_module("lockstep_late_example")}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that notes each time it is loaded."""
    folder = tmp_path / "lockstep_late_example"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import time\nfrom pathlib import Path\ntime.sleep(0.2)\n"
        "with open(Path(__file__).with_name('loaded'), 'a') as file:\n    file.write('x')\nanswer = 42\n"
    )
    (folder / "inner.py").write_text("answer = 43\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield str(folder / "loaded")
    for name in [name for name in sys.modules if name.startswith("lockstep_late_example")]:
        del sys.modules[name]


def test_a_late_module_is_loaded_once_when_several_threads_first_use_it(package: str) -> None:
    with late(EXAMPLE):
        import lockstep_late_example
    assert not Path(package).exists()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: lockstep_late_example.answer, range(8))) == [42] * 8
    assert Path(package).read_text() == "x"
    assert sys.modules["lockstep_late_example"].answer == 42


def test_a_module_inside_a_late_one_and_a_name_of_it_can_be_imported(package: str) -> None:
    with late(EXAMPLE):
        import lockstep_late_example.inner
        from lockstep_late_example import answer
    assert (lockstep_late_example.inner.answer, answer) == (43, 42)


def test_what_a_late_module_lacks_is_an_attribute_error(package: str) -> None:
    with late(EXAMPLE):
        import lockstep_late_example
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = lockstep_late_example.nothing_of_this_name
    assert not hasattr(lockstep_late_example, "nothing_of_this_name")


def test_a_module_that_is_there_stays_what_it_is() -> None:
    with late({"json": lambda: import_module("json")}):
        import json
    assert type(json) is type(sys)
    assert json.loads("1") == 1


def test_garbage_is_collected_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), late({}):
        raise ImportError
    assert gc.isenabled()


@pytest.mark.slow
def test_the_suites_are_judged_without_the_modules_of_pages_and_statistics() -> None:
    code = (
        "import sys, pyarrow\n"
        "import spark_jobs.suite_parts\n"
        "from spark_jobs.suite_runner import SUITES, judge\n"
        "frame = pyarrow.table({'_table': ['t'], '_key': ['1'], '_cdc_op': ['u'], '_cdc_source': ['a'],"
        " '_cdc_seq': [1], '_cdc_row': [0]})\n"
        "assert judge(frame, SUITES['merged'](1), 1)['success']\n"
        "assert not judge(frame, SUITES['merged'](2), 1)['success']\n"
        "assert 'altair.vegalite' not in sys.modules and 'scipy.stats.distributions' not in sys.modules\n"
        "from scipy import stats\n"
        "assert stats.norm.cdf(0) == 0.5\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
