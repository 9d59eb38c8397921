"""File names in a run folder, as written by the leader."""

from __future__ import annotations

WORK = "import"  # folder for resuming an interrupted job=import
PREPARED = "prepared"  # folder of the ranks' data, removed after the run
SOURCE = "source"  # its subfolder with the graph, which may be partitioned again
INPUTS = "inputs.json"  # preprocessing of the model's input data
COORDINATION = "coordination.json"  # the leader's decisions
EPOCHS = "epochs.jsonl"  # totals of each epoch, and each evaluation
FAILURE = "failure-{number}.txt"  # why the ranks ended before a restart, with stacks
LABELS = "labels.json"  # label statistics of the task
CLASSES = "classes.json"  # class names by number, if there are any
PICTURE = "partition.json"  # the partition in numbers, and a sample of the graph
WORDS = "words_between.npy"  # words per epoch between each pair of ranks
PARTITION = "partition"  # folder of the partition written by job=partition
REPORT = "report.html"  # the page of a run or a sweep
TOP = "topk.parquet"  # recommended items of each source
VECTORS = "vectors"  # folder with the vectors whose dot product is a pair's score
