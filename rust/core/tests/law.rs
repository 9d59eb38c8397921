//! A law of another crate: it sees public names only, and threads change nothing.

use gnnkit_core::Error;
use gnnkit_core::float::Floats;
use gnnkit_core::rng::{Stream, derive};
use gnnkit_core::sample::{Hop, Law, Row, Scratch, draw_by};
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
            room.push((-self.graph.weight(edge)?, edge as i64));
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
    let hop = draw_by(&view, &nodes, &law, 5, Scratch::default().on_threads(threads)).unwrap();
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
    let draw = |law| draw_by(&view, &[0, 1], &law, 1, &mut Scratch::default()).unwrap_err();
    for value in [-1, 2, 1 << 33] {
        assert_eq!(draw(Wrong(Some(value))), Error::Drawn { node: 0, value });
    }
    assert_eq!(draw(Wrong(Some(0))), Error::Drawn { node: 1, value: 0 });
    assert_eq!(draw(Wrong(None)), Error::Withdrawn { node: 1 });
}
