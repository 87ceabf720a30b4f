"""Specs of the benchmarks on space, grounding in time and space, and streaming video."""

from __future__ import annotations

from evr1_core.specs import BenchmarkSpec

SPECS = (
    BenchmarkSpec(
        name="vsi-bench",
        target="evr1_benchmarks.vsi_bench:VSIBench",
        summary="space in videos of rooms: counts, sizes, distances, directions, routes, order",
        problem_types=("multiple-choice", "regression"),
        size=5130,
        variants={"full": 5130, "debiased": None, "pruned": None, "easyvideor1": 5130},
        metric="unweighted mean of 8 tasks: accuracy, and mean relative accuracy of numbers",
        licence="Apache-2.0",
        url="https://huggingface.co/datasets/nyu-visionx/VSI-Bench",
        paper="arXiv 2412.14171",
        layout="test-*.parquet or test.jsonl; test_debiased.parquet, test_pruned.parquet\n{arkitscenes,scannet,scannetpp}/{scene_name}.mp4",
    ),
    BenchmarkSpec(
        name="charades-sta",
        target="evr1_benchmarks.charades_sta:CharadesSTA",
        summary="when a described event happens in a video of half a minute",
        problem_types=("temporal-grounding",),
        size=3720,
        variants={"test": 3720, "easyvideor1": 3720},
        metric="R@1 at IoU 0.3, 0.5, 0.7, and mIoU",
        licence="non-commercial (Charades)",
        url="https://github.com/jiyanggao/TALL",
        paper="arXiv 1705.02101",
        layout="charades_sta_test.txt\nCharades_v1_480/{video}.mp4\nCharades_v1_test.csv (optional: lengths)",
    ),
    BenchmarkSpec(
        name="stvg",
        target="evr1_benchmarks.stvg:STVG",
        summary="when a described event happens, and where its object is at each second",
        problem_types=("spatial-temporal-grounding",),
        size=2000,
        variants={"st-align": 2000, "vidstg-val": 8956, "vidstg-test": 10303, "easyvideor1": 2000},
        metric="m_tIoU, m_vIoU, vIoU at 0.3 and 0.5",
        licence="not stated (VidOR has terms of its own)",
        url="https://huggingface.co/datasets/appletea2333/ST-Align-Benchmark",
        paper="arXiv 2501.08282, arXiv 2001.06891",
        layout=(
            "stvg.json\nsources/{video_path}\n"
            "for vidstg-*: val_annotations.json or test_annotations.json, vidor/**/{vid}.json, any folder with {vid}.mp4"
        ),
    ),
    BenchmarkSpec(
        name="ovo-bench",
        target="evr1_benchmarks.ovo_bench:OVOBench",
        summary="questions at a moment of a running video: back, now, and not yet",
        problem_types=("multiple-choice", "count", "boolean"),
        size=3035,
        variants={"official": 3035, "easyvideor1": 3035},
        metric="mean of backward, real-time and forward, each the mean of its tasks",
        licence="CC BY-NC-SA 4.0",
        url="https://huggingface.co/datasets/JoeLeelyf/OVO-Bench",
        paper="arXiv 2501.05510",
        layout="ovo_bench_new.json\nchunked_videos/{id}.mp4, chunked_videos/{id}_{i}.mp4, or src_videos/{video}",
    ),
    BenchmarkSpec(
        name="odv-bench",
        target="evr1_benchmarks.odv_bench:ODVBench",
        summary="driving videos: objects at rest, objects that move, events ahead",
        problem_types=("multiple-choice",),
        variants={"all": None, "static": None, "dynamic": None, "event": None, "easyvideor1": None},
        metric="accuracy over all questions",
        licence="not stated",
        url="https://huggingface.co/datasets/MCG-NJU/ODV-Bench",
        paper="arXiv 2509.24871",
        layout="targeting_*_v4.json (or .jsonl, or a folder with Parquet files), three of them\nvideos/{video}",
    ),
    BenchmarkSpec(
        name="livesports-qa",
        target="evr1_benchmarks.livesports_qa:LiveSportsQA",
        summary="who, when and what in clips of sports broadcasts",
        problem_types=("multiple-choice",),
        size=1174,
        variants={"official": 1174, "easyvideor1": 1174},
        metric="accuracy over all questions; Who, When, What, and those about text on screen",
        licence="not stated",
        url="https://huggingface.co/datasets/stdKonjac/LiveSports-3K",
        paper="arXiv 2504.16030",
        layout="LiveSports-3K-QA.csv or .json\nvideos/{video_id}.mp4",
    ),
)
