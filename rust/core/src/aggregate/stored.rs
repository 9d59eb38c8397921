//! Dropout of rows of which only some numbers are stored.

use super::Aggregator;
use crate::csc::Id;
use crate::error::check_length;
use crate::rng::{Stream, derive};
use crate::{Dropout, Error, Number, team};

/// Operations that a draw is worth.
const DRAW: usize = 4;

impl Aggregator {
    /// Applies `dropout` to stored numbers, and writes the result to `out`. Edge
    /// e = u -> v stands for the number `values[e]` in column u of row v, which has the
    /// id `ids[v]`. The result equals [`Dropout::apply`] on the rows with all columns.
    pub fn drop_stored<T: Number, I: Id>(
        &self,
        dropout: Dropout,
        ids: &[I],
        values: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        if self.position.is_some() {
            return Err(Error::Direction {
                function: "drop_stored",
                name: "values",
                wanted: "original",
            });
        }
        check_length("ids", ids.len(), self.num_destinations())?;
        check_length("values", values.len(), self.num_edges())?;
        check_length("out", out.len(), self.num_edges())?;
        let tasks = self.tasks(DRAW, threads, |row| self.indptr[row], out);
        team::for_each(threads, tasks, |(rows, out)| {
            let first = self.indptr[rows.start];
            for row in rows {
                let stream = Stream::new(derive(dropout.key(), ids[row].signed() as u64));
                for edge in self.edges(row) {
                    out[edge - first] = dropout.element(&stream, self.sources[edge] as usize, values[edge]);
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Csc;

    #[test]
    fn stored_numbers_are_dropped_as_rows_with_all_columns() {
        let width = 70;
        for num_rows in [0usize, 3, 2000] {
            let ids: Vec<i64> = (0..num_rows as i64).map(|row| row * 7 - 5).collect();
            // Row v omits each multiple of v % 4 + 2, and row 1 is empty.
            let held = |row: usize, column: usize| row != 1 && !column.is_multiple_of(row % 4 + 2);
            let (mut indptr, mut columns) = (vec![0], vec![]);
            for row in 0..num_rows {
                columns.extend(
                    (0..width)
                        .filter(|&column| held(row, column))
                        .map(|column| column as i32),
                );
                indptr.push(columns.len() as i64);
            }
            let rows = Aggregator::new(Csc::new(&indptr, &columns, width).unwrap()).unwrap();
            let values: Vec<f32> = (0..columns.len()).map(|edge| edge as f32 + 0.5).collect();
            let mut dense = vec![0.0; num_rows * width];
            for row in 0..num_rows {
                for edge in rows.edges(row) {
                    dense[row * width + columns[edge] as usize] = values[edge];
                }
            }
            for p in [0.0, 0.3, 1.0] {
                let dropout = Dropout::new(3, p).unwrap();
                let mut expected = vec![7.0; dense.len()];
                dropout.apply(&ids, width, &dense, None, &mut expected, 1).unwrap();
                for threads in [1, 3] {
                    let mut out = vec![7.0; values.len()];
                    rows.drop_stored(dropout, &ids, &values, &mut out, threads).unwrap();
                    for row in 0..num_rows {
                        for edge in rows.edges(row) {
                            assert_eq!(out[edge], expected[row * width + columns[edge] as usize], "p = {p}");
                        }
                    }
                }
            }
            let dropout = Dropout::new(3, 0.5).unwrap();
            let mut out = vec![0.0; values.len()];
            let turned = rows.transpose().unwrap();
            assert!(turned.drop_stored(dropout, &ids, &values, &mut out, 1).is_err());
            assert!(rows.drop_stored(dropout, &[1i64; 5], &values, &mut out, 1).is_err());
        }
    }
}
