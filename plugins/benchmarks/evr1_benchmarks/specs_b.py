"""Specs of the benchmarks of video reasoning and of knowledge."""

from __future__ import annotations

from evr1_core.specs import BenchmarkSpec, RewardSpec

SPECS = (
    BenchmarkSpec(
        name="video-holmes",
        target="evr1_benchmarks.video_holmes:VideoHolmes",
        summary="six-option questions of seven types about suspense films",
        problem_types=("multiple-choice",),
        size=1837,
        variants={"test": 1837, "train": 1551, "easyvideor1": 1837},
        metric="accuracy over all questions",
        licence="own academic licence",
        url="https://huggingface.co/datasets/TencentARC/Video-Holmes",
        paper="arXiv 2505.21374",
        layout="test_Video-Holmes.json\nvideos/{video ID}.mp4 (or videos_cropped/)",
    ),
    BenchmarkSpec(
        name="minerva",
        target="evr1_benchmarks.minerva:Minerva",
        summary="five-option questions about YouTube videos, tabled by skill, split and category",
        problem_types=("multiple-choice",),
        size=1515,
        variants={"all": 1515, "easyvideor1": 1431},
        metric="accuracy over all questions",
        licence="CC-BY 4.0",
        url="https://storage.mtls.cloud.google.com/neptunedata/minerva.json",
        paper="arXiv 2505.00681",
        layout="minerva.json\nvideos/{video_id}.mp4 (.webm, .mkv)",
    ),
    BenchmarkSpec(
        name="vcr-bench",
        target="evr1_benchmarks.vcr_bench:VCRBench",
        summary="choices, free answers, time intervals and boxes in seven dimensions of video reasoning",
        problem_types=("multiple-choice", "open-ended", "temporal-grounding", "spatial-grounding"),
        size=1034,
        variants={"pixel-boxes": 1034, "thousand-boxes": 1034, "easyvideor1": 1034},
        metric="accuracy over all questions",
        licence="not stated",
        url="https://huggingface.co/datasets/VLM-Reasoning/VCR-Bench",
        paper="arXiv 2504.07956",
        layout="meta_info_video.json\nv1/videos/{video_path} (video.zip unpacked)",
    ),
    BenchmarkSpec(
        name="videoreasonbench",
        target="evr1_benchmarks.videoreasonbench:VideoReasonBench",
        summary="hidden states of six demonstrations: recall, infer, predict; operations are simulated",
        problem_types=("videoreasonbench-answer", "videoreasonbench-operation"),
        size=1440,
        variants={
            "all": 1440,
            "hrd": 240,
            "grid": 240,
            "cup": 240,
            "file_sys": 240,
            "card": 240,
            "chip": 240,
            "easyvideor1": 1440,
        },
        metric="accuracy over all questions",
        licence="not stated",
        url="https://huggingface.co/datasets/lyx97/reasoning_videos",
        paper="arXiv 2505.23359",
        layout="questions/{demo}.json (from github.com/llyx97/video_reason_bench)\nvideos/{demo}/*.mp4",
    ),
    BenchmarkSpec(
        name="longvideo-reason",
        target="evr1_benchmarks.longvideo_reason:LongVideoReason",
        summary="questions about long videos in four perspectives; strict and lenient reading",
        problem_types=("multiple-choice",),
        size=1000,
        variants={"test": 1000, "easyvideor1": 851},
        metric="accuracy over all questions",
        licence="not stated",
        url="https://huggingface.co/datasets/LongVideo-Reason/longvideo-reason",
        paper="arXiv 2507.07966",
        layout="data/test-*.parquet\nlongvila_videos/*.mp4 or longvideo_eval_subset{N}/*.mp4 (.webm, .mkv)",
    ),
    BenchmarkSpec(
        name="mmvu",
        target="evr1_benchmarks.mmvu:MMVU",
        summary="expert knowledge in 27 subjects: five options, and open questions for the judge",
        problem_types=("multiple-choice", "open-ended"),
        size=1000,
        variants={"validation": 1000, "easyvideor1": 1000},
        metric="accuracy over all questions",
        licence="not stated",
        url="https://huggingface.co/datasets/yale-nlp/MMVU",
        paper="arXiv 2501.12380",
        layout="validation.json\nvideos/{Subject}/{n}.mp4",
    ),
    BenchmarkSpec(
        name="video-mmmu",
        target="evr1_benchmarks.video_mmmu:VideoMMMU",
        summary="knowledge from 300 lectures: perception, comprehension, adaptation, and the gain by the video",
        problem_types=("multiple-choice", "numerical"),
        size=900,
        variants={
            "all": 900,
            "perception": 300,
            "comprehension": 300,
            "adaptation": 300,
            "question-only": 300,
            "knowledge": 600,
            "separate-image": 900,
            "easyvideor1": 900,
        },
        metric="accuracy over all questions; gain of knowledge",
        licence="not stated",
        url="https://huggingface.co/datasets/lmms-lab/VideoMMMU",
        paper="arXiv 2501.13826",
        layout=(
            "Perception/test-*.parquet, Comprehension/, Adaptation/ (or perception_video.json, ... of the authors' repository)\n"
            "{Art, Business, Science, Medicine, Humanities, Engineering}/{id}.mp4\n"
            "question_only/{id}_image.mp4 (variants question-only, knowledge, separate-image)\n"
            "images/{id}.png (variant separate-image, in place of question_only)"
        ),
    ),
    BenchmarkSpec(
        name="videomathqa",
        target="evr1_benchmarks.videomathqa:VideoMathQA",
        summary="mathematics in videos: five options (MCQ), or four two-option parts that must all be right (MBin)",
        problem_types=("multiple-choice",),
        size=420,
        variants={"mcq": 420, "mcq-subtitles": 420, "mbin": 1680, "mbin-subtitles": 1680, "easyvideor1": 2100},
        metric="accuracy (MCQ); share of questions with all four parts right (MBin)",
        licence="not stated",
        url="https://huggingface.co/datasets/MBZUAI/VideoMathQA",
        paper="arXiv 2506.05349",
        layout=(
            "videomathqa_mcq_test.parquet, videomathqa_mbin_test.parquet\n"
            "videos/{videoID}.mp4\nsubtitles/{videoID}.srt (variants with subtitles)"
        ),
    ),
)

REWARDS = (
    RewardSpec(
        name="videoreasonbench-answer",
        problem_types=("videoreasonbench-answer",),
        target="evr1_benchmarks.videoreasonbench_reward:FinalAnswer",
        config="evr1_benchmarks.videoreasonbench_reward:Options",
        summary="what stands behind `Final Answer`, compared with all of the gold answer by the judge",
        template="open-ended",
    ),
    RewardSpec(
        name="videoreasonbench-operation",
        problem_types=("videoreasonbench-operation",),
        target="evr1_benchmarks.videoreasonbench_reward:Operations",
        config="evr1_benchmarks.videoreasonbench_reward:Options",
        summary="operations behind `Final Answer`, simulated: do they lead to the target state",
        template="open-ended",
    ),
)
