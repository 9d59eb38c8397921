//! A law of another crate: it sees public names only, and threads change nothing.

use gnnkit_core::Error;
use gnnkit_core::float::Floats;
use gnnkit_core::rng::{Stream, derive};
use gnnkit_core::sample::{Hop, Importance, Kind, Law, Row, Sampler, Scratch, draw_by};
use gnnkit_core::view::{Extra, View};

/// The heaviest in-edges of each node, the first ones of equal weight.
struct Heaviest<'a> {
    graph: &'a View<'a, i32>,
    count: usize,
}

impl Law for Heaviest<'_> {
    type Room = Vec<(f64, i64)>;

    fn draw(&self, row: &Row, room: &mut Self::Room, out: &mut Vec<i64>) -> Result<(), Error> {
        room.clear();
        for edge in row.start..row.start + row.degree {
            room.push((-self.graph.weight(row.position(edge))?, edge as i64));
        }
        room.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        out.extend(room.iter().take(self.count).map(|&(_, edge)| edge));
        Ok(())
    }
}

/// 2,000 nodes with 0 to 40 in-edges each.
fn graph() -> (Vec<i64>, Vec<i32>, Vec<f32>) {
    let mut stream = Stream::new(derive(3, 0));
    let mut indptr = vec![0];
    for _ in 0..2000 {
        indptr.push(indptr[indptr.len() - 1] + stream.below(41) as i64);
    }
    let num_edges = indptr[2000] as usize;
    let indices = (0..num_edges).map(|_| stream.below(2000) as i32).collect();
    let weight = (0..num_edges).map(|_| stream.below(8) as f32).collect();
    (indptr, indices, weight)
}

fn draw(threads: usize) -> (Vec<i64>, Vec<f32>, Hop<i32>) {
    let (indptr, indices, weight) = graph();
    let extra = Extra {
        weight: Some(Floats::F32(&weight)),
        ..Extra::default()
    };
    let view = View::new(&indptr, &indices, 2000).unwrap().with(extra).unwrap();
    let law = Heaviest { graph: &view, count: 5 };
    let nodes: Vec<i32> = (0..2000).rev().collect();
    let hop = draw_by(&view, &nodes, &law, 5, None, Scratch::default().on_threads(threads)).unwrap();
    (indptr, weight, hop)
}

#[test]
fn each_row_draws_its_heaviest_edges() {
    let (indptr, weight, hop) = draw(1);
    for at in 0..2000 {
        let node = 1999 - at;
        let drawn = &hop.edge_ids[hop.indptr[at] as usize..hop.indptr[at + 1] as usize];
        let edges: Vec<i64> = (indptr[node]..indptr[node + 1]).collect();
        assert_eq!(drawn.len(), edges.len().min(5));
        let least = drawn
            .iter()
            .map(|&edge| weight[edge as usize])
            .fold(f32::INFINITY, f32::min);
        let rest = edges.iter().filter(|edge| !drawn.contains(edge));
        assert!(rest.clone().all(|&edge| weight[edge as usize] <= least));
    }
}

#[test]
fn threads_change_nothing() {
    assert_eq!(draw(1).2, draw(4).2);
}

/// Draws a fixed value for each row, or removes the draws of other rows.
struct Wrong(Option<i64>);

impl Law for Wrong {
    type Room = ();

    fn draw(&self, _: &Row, _: &mut (), out: &mut Vec<i64>) -> Result<(), Error> {
        match self.0 {
            Some(value) => out.push(value),
            None if out.is_empty() => out.push(0),
            None => out.clear(),
        }
        Ok(())
    }
}

#[test]
fn a_draw_that_is_not_the_rows_is_an_error() {
    let (indptr, indices) = ([0, 1, 2], [0i32, 1]);
    let view = View::new(&indptr, &indices, 2).unwrap();
    let draw = |law| draw_by(&view, &[0, 1], &law, 1, None, &mut Scratch::default()).unwrap_err();
    for value in [-1, 2, 1 << 33] {
        assert_eq!(draw(Wrong(Some(value))), Error::Drawn { node: 0, value });
    }
    assert_eq!(draw(Wrong(Some(0))), Error::Drawn { node: 1, value: 0 });
    assert_eq!(draw(Wrong(None)), Error::Withdrawn { node: 1 });
}

/// Independent draws in proportion to the weights, as [`Kind::Weighted`] with replacement.
struct Proportional<'a> {
    graph: &'a View<'a, i32>,
    key: u64,
    count: usize,
    /// Divides the weights of a mean: the number of in-edges times this.
    share: f64,
}

impl Law for Proportional<'_> {
    type Room = Vec<f64>;

    fn draw(&self, row: &Row, sums: &mut Vec<f64>, out: &mut Vec<i64>) -> Result<(), Error> {
        sums.clear();
        let mut total = 0.0;
        for edge in row.start..row.start + row.degree {
            total += self.graph.weight(row.position(edge))?;
            sums.push(total);
        }
        if total > 0.0 {
            let mut stream = Stream::new(derive(self.key, row.id));
            for _ in 0..self.count {
                let mark = stream.next_f64() * total;
                out.push((row.start + sums.partition_point(|&sum| sum <= mark)) as i64);
            }
        }
        Ok(())
    }

    fn inverse_expectation(&self, row: &Row, edge: i64, drawn: usize, sums: &Vec<f64>) -> Result<f64, Error> {
        let weight = self.graph.weight(row.position(edge as usize))?;
        Ok(sums[sums.len() - 1] / (drawn as f64 * weight))
    }

    fn total(&self, row: &Row, _: &Vec<f64>) -> f64 {
        row.degree as f64 * self.share
    }
}

#[test]
fn importance_weights_are_those_of_the_same_law_of_the_core() {
    let (indptr, indices, weight) = graph();
    let nodes: Vec<i32> = (0..2000).collect();
    // By time, a row draws its first edge, which is always visible, and those at 6 to 15.
    let of_row = |degree: i64| std::iter::once(i64::MIN).chain(1..degree).take(degree as usize);
    let times: Vec<i64> = indptr.windows(2).flat_map(|ends| of_row(ends[1] - ends[0])).collect();
    let (bounds, key) = (vec![15; 2000], 7);
    for by_time in [false, true] {
        let extra = Extra {
            weight: Some(Floats::F32(&weight)),
            times: by_time.then_some(&times[..]),
            bounds: by_time.then_some(&bounds[..]),
            window: by_time.then_some(10),
            ..Extra::default()
        };
        let view = View::new(&indptr, &indices, 2000).unwrap().with(extra).unwrap();
        for (importance, share) in [(Importance::Sum, 1.0), (Importance::Mean, 1.0), (Importance::Mean, 0.5)] {
            let own = Sampler::new(Kind::Weighted { replace: true }, &[3], false, Some(importance)).unwrap();
            let mut expected = own.draw(&view, &nodes, 0, key, &mut Scratch::default()).unwrap();
            let scale = (1.0 / share) as f32;
            expected
                .weight
                .as_mut()
                .unwrap()
                .iter_mut()
                .for_each(|weight| *weight *= scale);
            let law = Proportional {
                graph: &view,
                key,
                count: 3,
                share,
            };
            for threads in [1, 4] {
                let mut scratch = Scratch::default();
                let hop = draw_by(&view, &nodes, &law, 3, Some(importance), scratch.on_threads(threads)).unwrap();
                assert_eq!(hop, expected);
            }
        }
    }
}
