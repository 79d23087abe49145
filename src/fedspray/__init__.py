"""FedSpray: federated graph learning that does right by minority nodes.

The public API; everything else may change. Names are imported when they are first used, so that
``import fedspray`` and the command line start at once.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspray import algorithms as algorithms
    from fedspray import backbones as backbones
    from fedspray import datasets as datasets
    from fedspray import links as links
    from fedspray import messages as messages
    from fedspray import testing as testing
    from fedspray.algorithms.apfl import APFL as APFL
    from fedspray.algorithms.base import Algorithm as Algorithm
    from fedspray.algorithms.base import Outputs as Outputs
    from fedspray.algorithms.base import supervised_loss as supervised_loss
    from fedspray.algorithms.ditto import Ditto as Ditto
    from fedspray.algorithms.fed_pub import FedPub as FedPub
    from fedspray.algorithms.fedala import FedALA as FedALA
    from fedspray.algorithms.fedaux import FedAux as FedAux
    from fedspray.algorithms.fedavg import FedAvg as FedAvg
    from fedspray.algorithms.fedgta import FedGTA as FedGTA
    from fedspray.algorithms.fedlit import FedLit as FedLit
    from fedspray.algorithms.fedper import FedPer as FedPer
    from fedspray.algorithms.fedproto import FedProto as FedProto
    from fedspray.algorithms.fedprox import FedProx as FedProx
    from fedspray.algorithms.fedspray import FedSpray as FedSpray
    from fedspray.algorithms.fedspray import FedSprayNoProxies as FedSprayNoProxies
    from fedspray.algorithms.fedspray import FedSprayPlus as FedSprayPlus
    from fedspray.algorithms.fedspray2 import FedSpray2 as FedSpray2
    from fedspray.algorithms.fedstar import FedStar as FedStar
    from fedspray.algorithms.gcfl import GCFL as GCFL
    from fedspray.algorithms.gcfl_plus import GCFLPlus as GCFLPlus
    from fedspray.algorithms.local import Local as Local
    from fedspray.algorithms.moon import MOON as MOON
    from fedspray.algorithms.scaffold import SCAFFOLD as SCAFFOLD
    from fedspray.api import compare as compare
    from fedspray.api import inspect as inspect
    from fedspray.api import load as load
    from fedspray.api import report as report
    from fedspray.api import resume as resume
    from fedspray.api import run as run
    from fedspray.backbones.base import Backbone as Backbone
    from fedspray.backbones.base import Drop as Drop
    from fedspray.backbones.base import LayeredBackbone as LayeredBackbone
    from fedspray.backbones.base import setting as setting
    from fedspray.backbones.gat import GAT as GAT
    from fedspray.backbones.gcn import GCN as GCN
    from fedspray.backbones.mlp import MLP as MLP
    from fedspray.backbones.module import ModuleBackbone as ModuleBackbone
    from fedspray.backbones.sage import SAGE as SAGE
    from fedspray.backbones.sgc import SGC as SGC
    from fedspray.data.batch import GraphBatch as GraphBatch
    from fedspray.data.federation import Client as Client
    from fedspray.data.federation import Federation as Federation
    from fedspray.data.federation import Split as Split
    from fedspray.data.federation import Task as Task
    from fedspray.data.graph import UNLABELLED as UNLABELLED
    from fedspray.data.graph import Graph as Graph
    from fedspray.data.statistics import ClientStatistics as ClientStatistics
    from fedspray.data.statistics import FederationStatistics as FederationStatistics
    from fedspray.data.statistics import describe as describe
    from fedspray.datasets.banks import Banks as Banks
    from fedspray.datasets.base import ClientGraphs as ClientGraphs
    from fedspray.datasets.base import DatasetCard as DatasetCard
    from fedspray.datasets.base import FederationCard as FederationCard
    from fedspray.datasets.citation import Citation as Citation
    from fedspray.datasets.twitch import Twitch as Twitch
    from fedspray.errors import InputError as InputError
    from fedspray.errors import MissingDataError as MissingDataError
    from fedspray.errors import RunStopped as RunStopped
    from fedspray.federate import build_federation as build_federation
    from fedspray.links.base import Link as Link
    from fedspray.links.base import Memory as Memory
    from fedspray.links.base import Trip as Trip
    from fedspray.nn import ops as ops
    from fedspray.nn.layers import Layer as Layer
    from fedspray.nn.optim import SGD as SGD
    from fedspray.nn.optim import Adam as Adam
    from fedspray.nn.optim import AdamState as AdamState
    from fedspray.nn.tree import Message as Message
    from fedspray.nn.tree import Params as Params
    from fedspray.nn.tree import expand as expand
    from fedspray.nn.tree import part_of as part_of
    from fedspray.nn.tree import prefixed as prefixed
    from fedspray.nn.tree import training_only as training_only
    from fedspray.partitioners.base import Partitioner as Partitioner
    from fedspray.partitioners.base import name_parts as name_parts
    from fedspray.partitioners.files import Files as Files
    from fedspray.partitioners.label_skew import LabelSkew as LabelSkew
    from fedspray.partitioners.louvain import Louvain as Louvain
    from fedspray.partitioners.metis import Metis as Metis
    from fedspray.report.outcome import ComparisonResult as ComparisonResult
    from fedspray.runs.callbacks import Callback as Callback
    from fedspray.runs.models import PersonalModel as PersonalModel
    from fedspray.runs.result import RunResult as RunResult
    from fedspray.runs.result import Score as Score
    from fedspray.runs.result import SeedResult as SeedResult
    from fedspray.seeds import generator as generator
    from fedspray.seeds import torch_generator as torch_generator
    from fedspray.tables.importing import import_tables as import_tables
    from fedspray.tables.schema import Schema as Schema

_HOMES = {
    "fedspray.algorithms.apfl": ("APFL",),
    "fedspray.algorithms.base": ("Algorithm", "Outputs", "supervised_loss"),
    "fedspray.algorithms.ditto": ("Ditto",),
    "fedspray.algorithms.fed_pub": ("FedPub",),
    "fedspray.algorithms.fedala": ("FedALA",),
    "fedspray.algorithms.fedaux": ("FedAux",),
    "fedspray.algorithms.fedavg": ("FedAvg",),
    "fedspray.algorithms.fedgta": ("FedGTA",),
    "fedspray.algorithms.fedlit": ("FedLit",),
    "fedspray.algorithms.fedper": ("FedPer",),
    "fedspray.algorithms.fedproto": ("FedProto",),
    "fedspray.algorithms.fedprox": ("FedProx",),
    "fedspray.algorithms.fedspray": ("FedSpray", "FedSprayNoProxies", "FedSprayPlus"),
    "fedspray.algorithms.fedspray2": ("FedSpray2",),
    "fedspray.algorithms.fedstar": ("FedStar",),
    "fedspray.algorithms.gcfl": ("GCFL",),
    "fedspray.algorithms.gcfl_plus": ("GCFLPlus",),
    "fedspray.algorithms.local": ("Local",),
    "fedspray.algorithms.moon": ("MOON",),
    "fedspray.algorithms.scaffold": ("SCAFFOLD",),
    "fedspray.api": ("compare", "inspect", "load", "report", "resume", "run"),
    "fedspray.backbones.base": ("Backbone", "Drop", "LayeredBackbone", "setting"),
    "fedspray.backbones.gat": ("GAT",),
    "fedspray.backbones.gcn": ("GCN",),
    "fedspray.backbones.mlp": ("MLP",),
    "fedspray.backbones.module": ("ModuleBackbone",),
    "fedspray.backbones.sage": ("SAGE",),
    "fedspray.backbones.sgc": ("SGC",),
    "fedspray.data.batch": ("GraphBatch",),
    "fedspray.data.federation": ("Client", "Federation", "Split", "Task"),
    "fedspray.data.graph": ("UNLABELLED", "Graph"),
    "fedspray.data.statistics": ("ClientStatistics", "FederationStatistics", "describe"),
    "fedspray.datasets.banks": ("Banks",),
    "fedspray.datasets.base": ("ClientGraphs", "DatasetCard", "FederationCard"),
    "fedspray.datasets.citation": ("Citation",),
    "fedspray.datasets.twitch": ("Twitch",),
    "fedspray.errors": ("InputError", "MissingDataError", "RunStopped"),
    "fedspray.federate": ("build_federation",),
    "fedspray.links.base": ("Link", "Memory", "Trip"),
    "fedspray.nn.layers": ("Layer",),
    "fedspray.nn.optim": ("SGD", "Adam", "AdamState"),
    "fedspray.nn.tree": ("Message", "Params", "expand", "part_of", "prefixed", "training_only"),
    "fedspray.partitioners.base": ("Partitioner", "name_parts"),
    "fedspray.partitioners.files": ("Files",),
    "fedspray.partitioners.label_skew": ("LabelSkew",),
    "fedspray.partitioners.louvain": ("Louvain",),
    "fedspray.partitioners.metis": ("Metis",),
    "fedspray.report.outcome": ("ComparisonResult",),
    "fedspray.runs.callbacks": ("Callback",),
    "fedspray.runs.models": ("PersonalModel",),
    "fedspray.runs.result": ("RunResult", "Score", "SeedResult"),
    "fedspray.seeds": ("generator", "torch_generator"),
    "fedspray.tables.importing": ("import_tables",),
    "fedspray.tables.schema": ("Schema",),
}
"""Where public names are at home."""

_MODULES = {
    "algorithms": "fedspray.algorithms",
    "backbones": "fedspray.backbones",
    "datasets": "fedspray.datasets",
    "links": "fedspray.links",
    "messages": "fedspray.messages",
    "ops": "fedspray.nn.ops",
    "testing": "fedspray.testing",
}
"""Modules that are public as a whole."""

__all__ = sorted([*_MODULES, *(name for names in _HOMES.values() for name in names)])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedspray")
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'fedspray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps `report`, the function, apart from the package of the same name, which Python would put in its place."""

    @property
    def report(self) -> Any:
        return __getattr__("report")

    @report.setter
    def report(self, package: ModuleType) -> None:
        """``import fedspray.report`` changes nothing here."""


sys.modules[__name__].__class__ = _Package
