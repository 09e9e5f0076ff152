"""The command ``replay``: its document, table and run directory."""

from tests.support.commands import document_of, printed_by
from tests.support.small_traces import job


def test_the_document_has_the_promised_keys_and_the_table_says_what_is_unknown(tmp_path):
    job(tmp_path)
    line = f"replay {tmp_path} --cluster ring:4 --bandwidth 50GB/s --latency 1us"
    document = document_of(line, f"--out={tmp_path / 'run'}")
    promised = {"ranks", "nodes", "iteration_s", "breakdown_s", "unmapped", "interval"}
    assert promised <= set(document)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_table_for_people_and_chakra_out(tmp_path):
    paths = " ".join(str(path) for path in job(tmp_path))
    line = f"replay {paths} --cluster ring:4 --bandwidth 50GB/s --latency 1us"
    assert "where the time goes" in printed_by(f"{line} --chakra {tmp_path / 'et'}")
    assert len(list((tmp_path / "et").glob("*.et"))) == 4
    unknown = "kernel times     recorded on an unknown chip; --recorded-on CHIP scales to trn2\n"
    assert unknown in printed_by(f"replay {paths} --cluster trn2.48xlarge")
