//! Sampled neighbourhoods.

use std::any::Any;
use std::cell::RefCell;
use std::ops::RangeInclusive;

use gnnkit_core::Error;
use gnnkit_core::csc::{Id, check_ids};
use gnnkit_core::memory::{Kept, List};
use gnnkit_core::relations::Relations;
use gnnkit_core::rng::derive;
use gnnkit_core::sample::{
    Batch, EdgeType, Hop, Importance, Kind, MAX_HOPS, Numbering, Paths, Request, Sampler, Scratch, Seeds, Trees,
    water_fill,
};
use gnnkit_core::similarity::{Preference, Similarity};
use gnnkit_core::view::{Extra, View};
use gnnkit_core::walk::Walks;
use numpy::ndarray::ArrayView1;
use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyUntypedArray};
use pyo3::prelude::*;

use crate::arg::{
    Arg, Floats, Ids, Slice, Table, attribute, count, exactly, flag, items, key as key_of, numbers, optional, real,
    refuse, text, within,
};
use crate::{UserError, user_error};

thread_local! {
    /// Tables that a thread's batches reuse. They live and die with the thread, so a
    /// fork inherits no lock.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The attributes of `gnnkit.sampler.base.Reading` and of its `gnnkit.graph.CSC`.
pub(crate) struct PyReading<'py> {
    pub(crate) indptr: Slice<'py, i64>,
    pub(crate) indices: Ids<'py>,
    pub(crate) num_sources: usize,
    pub(crate) weight: Option<Floats<'py>>,
    pub(crate) wanted: Option<Slice<'py, f64>>,
    /// Rows that walks compare, and what they prefer.
    pub(crate) features: Option<(Table<'py>, Preference)>,
    pub(crate) cluster: Option<Slice<'py, i64>>,
    pub(crate) rows: Option<Slice<'py, i64>>,
    pub(crate) sources: Option<Slice<'py, i64>>,
    pub(crate) counts: Option<Slice<'py, i64>>,
    pub(crate) keys: Option<Slice<'py, i64>>,
    pub(crate) visibility: Option<PyVisibility<'py>>,
    pub(crate) relations: Option<PyRelations<'py>>,
}

/// The attributes of `gnnkit.sampler.base.Visibility`.
pub(crate) struct PyVisibility<'py> {
    times: Slice<'py, i64>,
    bounds: Option<Slice<'py, i64>>,
    window: Option<i64>,
    latest: bool,
}

impl<'py> PyVisibility<'py> {
    fn new(visibility: Arg<'_, 'py>) -> PyResult<Self> {
        let value = |name| attribute("visibility", visibility, name);
        Ok(Self {
            times: Slice::new("times", &value("times")?)?,
            bounds: optional(&value("bounds")?, |bounds| Slice::new("bounds", bounds))?,
            window: optional(&value("window")?, |window| {
                count("window", window).map(|window| window as i64)
            })?,
            latest: flag("latest", &value("latest")?)?,
        })
    }
}

/// The attributes of `gnnkit.sampler.base.ReadRelations`.
pub(crate) struct PyRelations<'py> {
    pub(crate) indptr: Slice<'py, i64>,
    pub(crate) codes: Slice<'py, i64>,
    pub(crate) starts: Slice<'py, i64>,
    pub(crate) order: Option<Slice<'py, i64>>,
    pub(crate) fanouts: Slice<'py, i64>,
    pub(crate) num_relations: usize,
    pub(crate) num_ids: usize,
}

impl<'py> PyRelations<'py> {
    fn new(relations: Arg<'_, 'py>) -> PyResult<Self> {
        let value = |name| attribute("relations", relations, name);
        Ok(Self {
            indptr: Slice::new("relations.indptr", &value("indptr")?)?,
            codes: Slice::new("relations.codes", &value("codes")?)?,
            starts: Slice::new("relations.starts", &value("starts")?)?,
            order: optional(&value("order")?, |order| Slice::new("relations.order", order))?,
            fanouts: Slice::new("relations.fanouts", &value("fanouts")?)?,
            num_relations: count("num_relations", &value("num_relations")?)?,
            num_ids: count("num_ids", &value("num_ids")?)?,
        })
    }

    fn view(&self) -> Relations<'_> {
        Relations {
            indptr: self.indptr.as_slice(),
            codes: self.codes.as_slice(),
            starts: self.starts.as_slice(),
            order: self.order.as_ref().map(Slice::as_slice),
            fanouts: self.fanouts.as_slice(),
            num_relations: self.num_relations,
            num_ids: self.num_ids,
        }
    }
}

impl<'py> PyReading<'py> {
    pub(crate) fn new(reading: Arg<'_, 'py>) -> PyResult<Self> {
        let csc = attribute("reading", reading, "csc")?;
        let of_csc = |name| attribute("reading.csc", &csc, name);
        let ids = |name| {
            let value = attribute("reading", reading, name)?;
            optional(&value, |value| Slice::new(name, value))
        };
        Ok(Self {
            indptr: Slice::new("indptr", &of_csc("indptr")?)?,
            indices: Ids::new("indices", &of_csc("indices")?)?,
            num_sources: count("num_sources", &of_csc("num_sources")?)?,
            weight: optional(&of_csc("weight")?, |weight| Floats::new("weight", weight))?,
            wanted: optional(&attribute("reading", reading, "wanted")?, |wanted| {
                Slice::new("wanted", wanted)
            })?,
            features: optional(&attribute("reading", reading, "features")?, |features| {
                let preference = attribute("reading", reading, "preference")?;
                let value = |name| attribute("preference", &preference, name);
                let floor = real("floor", &value("floor")?)?;
                let sharpness = count("sharpness", &value("sharpness")?)?;
                let preference = Preference::new(floor, sharpness).map_err(user_error)?;
                Ok((Table::new("features", features)?, preference))
            })?,
            cluster: ids("cluster")?,
            rows: ids("rows")?,
            sources: ids("sources")?,
            counts: ids("counts")?,
            keys: ids("keys")?,
            visibility: optional(&attribute("reading", reading, "visibility")?, PyVisibility::new)?,
            relations: optional(&attribute("reading", reading, "relations")?, PyRelations::new)?,
        })
    }

    fn extra(&self) -> Extra<'_> {
        let compared = self.features.as_ref();
        let visibility = self.visibility.as_ref();
        Extra {
            weight: self.weight.as_ref().map(Floats::view),
            wanted: self.wanted.as_ref().map(Slice::as_slice),
            similarity: compared.map(|(rows, like)| Similarity::new(rows.values.view(), rows.width, *like)),
            cluster: self.cluster.as_ref().map(Slice::as_slice),
            rows: self.rows.as_ref().map(Slice::as_slice),
            sources: self.sources.as_ref().map(Slice::as_slice),
            counts: self.counts.as_ref().map(Slice::as_slice),
            keys: self.keys.as_ref().map(Slice::as_slice),
            times: visibility.map(|seen| seen.times.as_slice()),
            bounds: visibility.and_then(|seen| seen.bounds.as_ref()).map(Slice::as_slice),
            window: visibility.and_then(|seen| seen.window),
            latest: visibility.is_some_and(|seen| seen.latest),
            relations: self.relations.as_ref().map(PyRelations::view),
        }
    }
}

/// Runs the body with a view of the graph, whichever width its ids have.
macro_rules! with_view {
    ($reading:expr, $view:ident => $body:expr) => {
        with_ids!($reading.indices, indices => {
            let csc = View::new($reading.indptr.as_slice(), indices, $reading.num_sources);
            let $view = csc.and_then(|csc| csc.with($reading.extra())).map_err(user_error)?;
            $body
        })
    };
}

/// The walks of (length, number of walks, alpha).
fn walks(value: Arg<'_, '_>) -> PyResult<Walks> {
    let [length, num_walks, alpha] = exactly("walks", value)?;
    let (length, num_walks) = (count("walk_length", &length)?, count("num_walks", &num_walks)?);
    Walks::new(length, num_walks, real("alpha", &alpha)?).map_err(user_error)
}

/// indptr, sources, edge ids, weights, relations of one hop.
type PyHop<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyArray1<i64>>,
    Option<Bound<'py, PyArray1<f32>>>,
    Option<Bound<'py, PyArray1<i16>>>,
);

/// nodes, known, indptr, indices, edge ids, weights, relations of a batch.
type PyBatch<'py> = (
    Bound<'py, PyUntypedArray>,
    Vec<usize>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyArray1<i64>>,
    Option<Bound<'py, PyArray1<f32>>>,
    Option<Bound<'py, PyArray1<i16>>>,
);

/// A sampler of the core. It is immutable, so any number of threads may use it.
#[pyclass(frozen, name = "Sampler", module = "gnnkit._core")]
pub struct PySampler(pub Sampler);

#[pymethods]
impl PySampler {
    /// Uniform neighbours.
    #[staticmethod]
    fn neighbor(
        fanouts: Arg<'_, '_>,
        replace: Arg<'_, '_>,
        redraw: Arg<'_, '_>,
        importance: Arg<'_, '_>,
    ) -> PyResult<Self> {
        let replace = flag("replace", replace)?;
        Self::new(Kind::Neighbor { replace }, fanouts, redraw, importance)
    }

    /// Uniform neighbours, equally many for all nodes that have any.
    #[staticmethod]
    fn equal(fanouts: Arg<'_, '_>, redraw: Arg<'_, '_>, importance: Arg<'_, '_>) -> PyResult<Self> {
        Self::new(Kind::Equal, fanouts, redraw, importance)
    }

    /// In proportion to weights.
    #[staticmethod]
    fn weighted(
        fanouts: Arg<'_, '_>,
        replace: Arg<'_, '_>,
        redraw: Arg<'_, '_>,
        importance: Arg<'_, '_>,
    ) -> PyResult<Self> {
        let replace = flag("replace", replace)?;
        Self::new(Kind::Weighted { replace }, fanouts, redraw, importance)
    }

    /// As equal a number of neighbours per node as degrees allow.
    #[staticmethod]
    fn balanced(fanouts: Arg<'_, '_>, redraw: Arg<'_, '_>, importance: Arg<'_, '_>) -> PyResult<Self> {
        Self::new(Kind::Balanced, fanouts, redraw, importance)
    }

    /// Nodes of a hop share sources.
    #[staticmethod]
    fn labor(fanouts: Arg<'_, '_>, redraw: Arg<'_, '_>, importance: Arg<'_, '_>) -> PyResult<Self> {
        Self::new(Kind::Labor, fanouts, redraw, importance)
    }

    /// The nodes that walks visit most.
    #[staticmethod]
    #[pyo3(signature = (fanouts, walks, redraw, importance))]
    fn metropolis_hastings(
        fanouts: Arg<'_, '_>,
        walks: Arg<'_, '_>,
        redraw: Arg<'_, '_>,
        importance: Arg<'_, '_>,
    ) -> PyResult<Self> {
        let walks = self::walks(walks)?;
        Self::new(Kind::MetropolisHastings(walks), fanouts, redraw, importance)
    }

    /// All edges between the clusters of the seeds.
    #[staticmethod]
    fn cluster(num_hops: Arg<'_, '_>) -> PyResult<Self> {
        let num_hops = within("num_hops", num_hops, 1..=MAX_HOPS)?;
        let sampler = Sampler::new(Kind::Cluster, &vec![-1; num_hops], false, None);
        sampler.map(Self).map_err(user_error)
    }

    /// One hop of `nodes`, drawn by `threads` threads.
    fn draw<'py>(
        &self,
        py: Python<'py>,
        reading: Arg<'_, 'py>,
        nodes: Arg<'_, 'py>,
        hop: Arg<'_, 'py>,
        key: Arg<'_, 'py>,
        threads: Arg<'_, 'py>,
    ) -> PyResult<PyHop<'py>> {
        let (reading, nodes) = (PyReading::new(reading)?, Slice::new("nodes", nodes)?);
        let (hop, key, threads) = (count("hop", hop)?, key_of("key", key)?, count("threads", threads)?);
        let nodes = nodes.as_slice();
        with_view!(reading, view => {
            let drawn = py.detach(|| {
                let nodes = narrow("nodes", nodes, view.num_nodes())?;
                SCRATCH.with_borrow_mut(|scratch| self.0.draw(&view, &nodes, hop, key, scratch.on_threads(threads)))
            });
            hop_to_py(py, drawn.map_err(user_error)?)
        })
    }

    /// All hops of `seeds`, drawn and numbered by `threads` threads.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        reading: Arg<'_, 'py>,
        seeds: Arg<'_, 'py>,
        key: Arg<'_, 'py>,
        threads: Arg<'_, 'py>,
    ) -> PyResult<PyBatch<'py>> {
        let (reading, seeds) = (PyReading::new(reading)?, Slice::new("seeds", seeds)?);
        let (key, threads) = (key_of("key", key)?, count("threads", threads)?);
        let seeds = seeds.as_slice();
        with_view!(reading, view => {
            let batch = py.detach(|| {
                let seeds = narrow("seeds", seeds, view.num_nodes())?;
                SCRATCH.with_borrow_mut(|scratch| self.0.sample(&view, &seeds, key, scratch.on_threads(threads)))
            });
            batch_to_py(py, batch.map_err(user_error)?)
        })
    }
}

/// The edges of one type: how nodes draw them, and the types of their ends.
struct PyEdgeType<'py> {
    sampler: Bound<'py, PySampler>,
    reading: PyReading<'py>,
    ends: [usize; 2],
}

impl<'py> PyEdgeType<'py> {
    fn new(edge_type: Arg<'_, 'py>, node_types: RangeInclusive<usize>) -> PyResult<Self> {
        let [sampler, reading, source, destination] = exactly("edge_types", edge_type)?;
        let end = |end| within("edge_types", end, node_types.clone());
        let sampler = sampler.cast_into();
        Ok(Self {
            sampler: sampler.map_err(|_| refuse("edge_types", "expected a Sampler"))?,
            reading: PyReading::new(&reading)?,
            ends: [end(&source)?, end(&destination)?],
        })
    }
}

/// What `grow` reads.
struct PyRequest<'py> {
    edge_types: Vec<PyEdgeType<'py>>,
    seeds: Vec<(Slice<'py, i64>, Slice<'py, u32>, usize)>,
    trees: Option<PyTrees<'py>>,
    key: u64,
}

/// Keys and bounds of trees, and how these follow from the times of edges.
struct PyTrees<'py> {
    keys: Slice<'py, i64>,
    bounds: Option<Slice<'py, i64>>,
    paths: Option<(Slice<'py, i64>, i64, i64, bool)>,
}

impl<'py> PyTrees<'py> {
    fn new(trees: Arg<'_, 'py>) -> PyResult<Self> {
        let [keys, bounds, paths] = exactly("trees", trees)?;
        Ok(Self {
            keys: Slice::new("keys", &keys)?,
            bounds: optional(&bounds, |bounds| Slice::new("bounds", bounds))?,
            paths: optional(&paths, |paths| {
                let [times, lag, spread, apart] = exactly("paths", paths)?;
                Ok((
                    Slice::new("times", &times)?,
                    lag.extract()?,
                    spread.extract()?,
                    flag("apart", &apart)?,
                ))
            })?,
        })
    }

    fn as_trees(&self) -> Trees<'_> {
        Trees {
            keys: self.keys.as_slice(),
            bounds: self.bounds.as_ref().map(Slice::as_slice),
            paths: self.paths.as_ref().map(|(times, lag, spread, apart)| Paths {
                times: times.as_slice(),
                lag: *lag,
                spread: *spread,
                apart: *apart,
            }),
        }
    }
}

impl<'py> PyRequest<'py> {
    /// The batch of edges with sources `indices` by type.
    fn grow<'a, I: Id + Element>(
        &'a self,
        py: Python<'py>,
        indices: impl Fn(&'a PyReading<'_>) -> Option<&'a [I]>,
        [num_hops, most_draws, threads]: [usize; 3],
        induced: bool,
    ) -> PyResult<PySubgraph<'py>> {
        let edge_types = self.edge_types.iter().enumerate().map(|(at, edge_type)| {
            let (reading, [source, destination]) = (&edge_type.reading, edge_type.ends);
            let indices = indices(reading).ok_or_else(|| refuse("edge_types", "ids must have one dtype"))?;
            let csc = View::new(reading.indptr.as_slice(), indices, reading.num_sources);
            Ok(EdgeType {
                sampler: &edge_type.sampler.get().0,
                graph: csc.and_then(|csc| csc.with(reading.extra())).map_err(user_error)?,
                source,
                destination,
                key: derive(self.key, at as u64),
            })
        });
        let edge_types = edge_types.collect::<PyResult<Vec<_>>>()?;
        let seeds = self.seeds.iter();
        let seeds: Vec<_> = seeds
            .map(|(ids, trees, count)| (ids.as_slice(), trees.as_slice(), *count))
            .collect();
        let trees = self.trees.as_ref().map(PyTrees::as_trees);
        let batch = py.detach(|| {
            let ids = seeds
                .iter()
                .map(|&(ids, _, num_nodes)| narrow::<I>("seeds", ids, num_nodes));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            let of_types = ids.iter().zip(&seeds).map(|(nodes, &(_, trees, num_nodes))| Seeds {
                nodes,
                trees,
                num_nodes,
            });
            let request = Request {
                num_hops,
                edge_types: &edge_types,
                seeds: &of_types.collect::<Vec<_>>(),
                trees,
                repeat: trees.is_none(),
                induced,
                most_draws,
            };
            SCRATCH.with_borrow_mut(|scratch| request.grow(scratch.on_threads(threads)))
        });
        let batch = batch.map_err(user_error)?;
        let nodes = batch.nodes.into_iter().map(|of_type| {
            let nodes = list_to_py(py, of_type.nodes)?.as_untyped().clone();
            Ok((nodes, of_type.trees.into_pyarray(py), of_type.known))
        });
        let edges = batch.edges.into_iter().map(|edges| hop_to_py(py, edges));
        let tree_times = batch.tree_times.into_pyarray(py);
        Ok((
            nodes.collect::<PyResult<_>>()?,
            edges.collect::<PyResult<_>>()?,
            tree_times,
        ))
    }
}

/// nodes, trees and known by node type.
type PyNodes<'py> = (Bound<'py, PyUntypedArray>, Bound<'py, PyArray1<u32>>, Vec<usize>);

/// Nodes by type, edges by type, and times of trees.
type PySubgraph<'py> = (Vec<PyNodes<'py>>, Vec<PyHop<'py>>, Bound<'py, PyArray1<i64>>);

/// All hops of a batch of several types.
#[allow(clippy::too_many_arguments)]
#[pyfunction]
#[pyo3(signature = (edge_types, seeds, trees, num_hops, key, *, induced, most_draws, threads))]
fn grow<'py>(
    py: Python<'py>,
    edge_types: Arg<'_, 'py>,
    seeds: Arg<'_, 'py>,
    trees: Arg<'_, 'py>,
    num_hops: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
    induced: Arg<'_, 'py>,
    most_draws: Arg<'_, 'py>,
    threads: Arg<'_, 'py>,
) -> PyResult<PySubgraph<'py>> {
    let seeds = items("seeds", seeds)?.into_iter().map(|of_type| {
        let [ids, trees, num_nodes] = exactly("seeds", &of_type)?;
        let ids = Slice::new("seeds", &ids)?;
        Ok((ids, Slice::new("trees", &trees)?, count("num_nodes", &num_nodes)?))
    });
    let seeds = seeds.collect::<PyResult<Vec<_>>>()?;
    let trees = optional(trees, PyTrees::new);
    let last = seeds
        .len()
        .checked_sub(1)
        .ok_or_else(|| refuse("seeds", "expected one type or more"))?;
    let edge_types = items("edge_types", edge_types)?.into_iter();
    let edge_types = edge_types.map(|edge_type| PyEdgeType::new(&edge_type, 0..=last));
    let request = PyRequest {
        edge_types: edge_types.collect::<PyResult<_>>()?,
        seeds,
        trees: trees?,
        key: key_of("key", key)?,
    };
    let induced = flag("induced", induced)?;
    let counts = [
        count("num_hops", num_hops)?,
        count("most_draws", most_draws)?,
        count("threads", threads)?,
    ];
    match request.edge_types.first().map(|edge_type| &edge_type.reading.indices) {
        Some(Ids::I32(_)) => request.grow(py, |reading| reading.indices.as_i32(), counts, induced),
        _ => request.grow(py, |reading| reading.indices.as_i64(), counts, induced),
    }
}

/// Local ids in order of first occurrence.
#[pyclass(name = "Numbering", module = "gnnkit._core")]
struct PyNumbering(Numbering);

#[pymethods]
impl PyNumbering {
    #[new]
    fn new(seeds: Arg<'_, '_>, num_nodes: Arg<'_, '_>) -> PyResult<Self> {
        let (seeds, num_nodes) = (Slice::new("seeds", seeds)?, count("num_nodes", num_nodes)?);
        let numbering = Numbering::new(seeds.as_slice(), num_nodes);
        numbering.map(Self).map_err(user_error)
    }

    /// The local id of each of `ids`. Ids that are new come next.
    fn add<'py>(&mut self, py: Python<'py>, ids: Arg<'_, 'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let ids = Slice::new("ids", ids)?;
        let ids = ids.as_slice();
        let locals = py.detach(|| self.0.add(ids)).map_err(user_error)?;
        Ok(locals.into_pyarray(py))
    }

    /// Global ids in order of first occurrence.
    fn nodes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_slice(py, self.0.nodes())
    }
}

impl PySampler {
    fn new(kind: Kind, fanouts: Arg<'_, '_>, redraw: Arg<'_, '_>, importance: Arg<'_, '_>) -> PyResult<Self> {
        let (fanouts, redraw) = (numbers("fanouts", fanouts)?, flag("redraw", redraw)?);
        if fanouts.is_empty() {
            return Err(UserError::new_err(
                "fanouts=[] names no hop: give one number of neighbours per layer",
            ));
        }
        let importance = optional(importance, |importance| match &*text("importance", importance)? {
            "mean" => Ok(Importance::Mean),
            "sum" => Ok(Importance::Sum),
            other => Err(UserError::new_err(format!(
                "importance={other} must be mean, sum or null"
            ))),
        })?;
        let sampler = Sampler::new(kind, &fanouts, redraw, importance);
        sampler.map(Self).map_err(user_error)
    }
}

/// Ids below `bound` in the width of the graph's own.
pub(crate) fn narrow<I: Id>(name: &'static str, ids: &[i64], bound: usize) -> Result<Vec<I>, Error> {
    check_ids(name, ids, bound, "nodes")?;
    Ok(ids.iter().map(|id| I::from_index(id.index())).collect())
}

fn hop_to_py<I: Id + Element>(py: Python<'_>, hop: Hop<I>) -> PyResult<PyHop<'_>> {
    Ok((
        list_to_py(py, hop.indptr)?,
        list_to_py(py, hop.sources)?.as_untyped().clone(),
        list_to_py(py, hop.edge_ids)?,
        hop.weight.map(|weight| list_to_py(py, weight)).transpose()?,
        hop.relation.map(|relation| list_to_py(py, relation)).transpose()?,
    ))
}

pub(crate) fn batch_to_py<I: Id + Element>(py: Python<'_>, batch: Batch<I>) -> PyResult<PyBatch<'_>> {
    Ok((
        list_to_py(py, batch.nodes)?.as_untyped().clone(),
        batch.known,
        list_to_py(py, batch.indptr)?,
        list_to_py(py, batch.indices)?.as_untyped().clone(),
        list_to_py(py, batch.edge_ids)?,
        batch.weight.map(|weight| list_to_py(py, weight)).transpose()?,
        batch.relation.map(|relation| list_to_py(py, relation)).transpose()?,
    ))
}

/// The list that an array shows. Later batches use its memory when no view of the array
/// is left.
#[pyclass(frozen, module = "gnnkit._core")]
struct Memory {
    _list: Box<dyn Any + Send + Sync>,
}

pub(crate) fn list_to_py<T: Kept + Element>(py: Python<'_>, list: List<T>) -> PyResult<Bound<'_, PyArray1<T>>> {
    let (start, len) = (list.as_ptr(), list.len());
    let memory = Bound::new(py, Memory { _list: Box::new(list) })?.into_any();
    // SAFETY: the elements stay where they are, and `memory` keeps them and lets nobody
    // else reach them.
    Ok(unsafe { PyArray1::borrow_from_array(&ArrayView1::from_shape_ptr(len, start), memory) })
}

/// The nodes that walks stand on, [num_starts * num_walks * (length + 1)], the start
/// first.
#[pyfunction]
#[pyo3(signature = (reading, starts, walks, key))]
fn visited<'py>(
    py: Python<'py>,
    reading: Arg<'_, 'py>,
    starts: Arg<'_, 'py>,
    walks: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let (reading, starts) = (PyReading::new(reading)?, Slice::new("starts", starts)?);
    let (walks, key) = (self::walks(walks)?, key_of("key", key)?);
    let starts = starts.as_slice();
    with_view!(reading, view => {
        let visited = py.detach(|| walks.visited(&view, &narrow("starts", starts, view.num_nodes())?, key));
        visited.map(|visited| visited.into_pyarray(py).as_untyped().clone()).map_err(user_error)
    })
}

/// Numbers of draws per node, as equal as `degrees` allow.
#[pyfunction(name = "water_fill")]
fn water_fill_py<'py>(
    py: Python<'py>,
    degrees: Arg<'_, 'py>,
    budget: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let (degrees, budget) = (Slice::<i64>::new("degrees", degrees)?, count("budget", budget)?);
    let degrees = degrees.as_slice();
    check_ids("degrees", degrees, isize::MAX as usize, "neighbours").map_err(user_error)?;
    let counts = py.detach(|| {
        let degrees: Vec<usize> = degrees.iter().map(|degree| degree.index()).collect();
        let counts = water_fill(&degrees, budget).into_iter();
        counts.map(|count| count as i64).collect::<Vec<_>>()
    });
    Ok(counts.into_pyarray(py))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PySampler>()?;
    m.add_class::<PyNumbering>()?;
    m.add_function(wrap_pyfunction!(grow, m)?)?;
    m.add_function(wrap_pyfunction!(visited, m)?)?;
    m.add_function(wrap_pyfunction!(water_fill_py, m)?)
}
