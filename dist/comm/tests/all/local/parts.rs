//! Collectives on parts of one buffer, ragged gathers and scatters, and transports that break the
//! contract.

use meshgrad_collectives::{Operands, Request};
use meshgrad_comm::{
    Collectives, Communicator, Local, LocalCommunicator, LocalRank, Rank, Reduction,
};
use meshgrad_mesh::Group;
use meshgrad_runtime::{DType, Device, Kind, Pending, Result, Tensor, ops};

const WIDTH: usize = 2;

/// Rows of each member; some have none.
fn rows(ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| (3 * rank + 2) % 4).collect()
}

fn before(rows: &[usize], member: usize) -> usize {
    rows[..member].iter().sum()
}

fn values(rank: usize, rows: usize) -> Vec<f32> {
    (0..rows * WIDTH).map(|at| (100 * rank + at) as f32).collect()
}

fn tensor(rank: &LocalRank, rows: usize) -> Result<Tensor> {
    let values = values(rank.rank(), rows);
    Tensor::from_slice(rank.device(), &[rows, WIDTH], &values)
}

/// A mutable buffer with `values` in rows from `at` on.
fn buffer(rank: &LocalRank, rows: usize, at: usize, values: &[f32]) -> Result<Tensor> {
    let buffer = Tensor::zeros(rank.device(), &[rows, WIDTH], DType::F32, Kind::Cache)?;
    buffer.write::<f32>("fill")?[at * WIDTH..][..values.len()].copy_from_slice(values);
    Ok(buffer)
}

/// The part is in its place in the whole, or elsewhere in the buffer.
#[test]
fn parts_and_wholes_share_a_buffer() {
    for ranks in [1, 2, 3, 5] {
        let rows = rows(ranks);
        let (total, even) = (rows.iter().sum::<usize>(), 2 * ranks);
        let results = Local::run(ranks, |rank| -> Result<()> {
            let world = rank.world()?;
            let me = rank.rank();
            let own = rows[me];
            let gathered: Vec<f32> = (0..ranks).flat_map(|rank| values(rank, rows[rank])).collect();
            for at in [before(&rows, me), total] {
                let buffer = buffer(rank, total + own, at, &values(me, own))?;
                let (whole, part) = (buffer.slice(0, 0..total)?, buffer.slice(0, at..at + own)?);
                let result = world.all_gather_rows_into(&part, &rows, &whole)?.wait()?;
                assert_eq!(result.to_vec::<f32>()?, gathered);
                assert_eq!(result.storage_id(), buffer.storage_id());
            }

            let all: Vec<Vec<f32>> = (0..ranks).map(|rank| values(rank, total)).collect();
            let sum = |at: usize| all.iter().map(|values| values[at]).sum::<f32>();
            let start = before(&rows, me);
            let expected: Vec<f32> = (start * WIDTH..(start + own) * WIDTH).map(sum).collect();
            for at in [start, total] {
                let buffer = buffer(rank, total + own, 0, &all[me])?;
                let (whole, part) = (buffer.slice(0, 0..total)?, buffer.slice(0, at..at + own)?);
                let sum = Reduction::Sum;
                let result = world.reduce_scatter_rows_into(&whole, &rows, sum, &part)?;
                assert_eq!(result.wait()?.to_vec::<f32>()?, expected);
            }

            let buffer = buffer(rank, even, 2 * me, &values(me, 2))?;
            let part = buffer.slice(0, 2 * me..2 * me + 2)?;
            world.all_gather_into(&part, &buffer)?.wait()?;
            world.reduce_scatter_into(&buffer, Reduction::Max, &part)?.wait()?;
            let gathered: Vec<f32> = (0..ranks).flat_map(|rank| values(rank, 2)).collect();
            assert_eq!(buffer.to_vec::<f32>()?, gathered);
            Ok(())
        });
        results.unwrap();
    }
}

/// A part that overlaps the whole at another member's place would be read after it is overwritten.
#[test]
fn an_overlap_elsewhere_is_an_error() {
    let results = Local::run(2, |rank| -> Result<()> {
        let world = rank.world()?;
        let buffer = buffer(rank, 4, 0, &[])?;
        let wrong = 1 - rank.rank();
        let part = buffer.slice(0, 2 * wrong..2 * wrong + 2)?;
        let errors = [
            world.all_gather_into(&part, &buffer).map(drop),
            world.reduce_scatter_into(&buffer, Reduction::Sum, &part).map(drop),
            world.reduce_scatter_into(&buffer, Reduction::Sum, &buffer.slice(0, 1..3)?).map(drop),
        ];
        for error in errors {
            let message = error.unwrap_err().to_string();
            assert!(message.contains("is not this member's part of it"), "{message}");
        }
        world.barrier()?.wait()
    });
    results.unwrap();
}

#[test]
fn a_root_reduces_in_place() {
    let results = Local::run(3, |rank| -> Result<()> {
        let world = rank.world()?;
        for root in 0..3 {
            let x = buffer(rank, 2, 0, &values(rank.rank(), 2))?;
            let result = world.reduce_in_place(&x, Reduction::Sum, root)?.wait()?;
            let is_root = rank.rank() == root;
            assert_eq!(result.map(|x| x.storage_id()), is_root.then(|| x.storage_id()));
            let expected = match is_root {
                true => vec![300.0, 303.0, 306.0, 309.0],
                false => values(rank.rank(), 2),
            };
            assert_eq!(x.to_vec::<f32>()?, expected);
        }
        let immutable = tensor(rank, 1)?;
        let result = world.reduce_in_place(&immutable, Reduction::Sum, rank.rank());
        let error = result.map(drop).unwrap_err().to_string();
        assert!(error.starts_with("reduce: the tensor is a value, which is immutable"), "{error}");
        Ok(())
    });
    results.unwrap();
}

/// Results are equal with 1 to 16 threads, even if rows are uneven.
#[test]
fn the_bits_of_large_collectives_do_not_depend_on_threads() {
    let rows = [100_003, 0, 60_001];
    let total = rows.iter().sum::<usize>();
    let run = |threads: usize| {
        let results = Local::new(3).threads(threads).launch(|rank| -> Result<Vec<Vec<u32>>> {
            let (world, me) = (rank.world()?, rank.rank());
            let value = |at: usize| ((at * 2_654_435_761 + me) % 1_000) as f32 * 0.37 - 100.0;
            let values: Vec<f32> = (0..total * WIDTH).map(value).collect();
            let whole = Tensor::from_slice(rank.device(), &[total, WIDTH], &values)?;
            let own = whole.slice(0, 0..rows[me])?;
            let in_place = buffer(rank, total, 0, &values)?;
            let sum = Reduction::Sum;
            let sent = [20_001 * me, total - 20_001 * me - 7, 7];
            let received = (0..3).map(|rank| [20_001 * rank, total - 20_001 * rank - 7, 7][me]);
            let received: Vec<usize> = received.collect();
            let results = [
                world.all_reduce(&whole, sum)?,
                world.all_reduce_in_place(&in_place, Reduction::Mean)?,
                world.reduce_scatter_rows(&whole, &rows, sum)?,
                world.all_gather_rows(&own, &rows)?,
                world.all_to_all_rows(&whole, &sent, &received)?,
                world.broadcast(&whole, 2)?,
            ];
            let bits = results.into_iter().map(|result| {
                let values = result.wait()?.to_vec::<f32>()?;
                Ok(values.iter().map(|x| x.to_bits()).collect())
            });
            bits.collect()
        });
        results.unwrap()
    };
    let one = run(1);
    for threads in [2, 3, 16] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn ragged_scatter_inverts_ragged_gather() {
    let rows = rows(5);
    let results = Local::run(5, |rank| -> Result<()> {
        let world = rank.world()?;
        let own = tensor(rank, rows[rank.rank()])?;
        for root in 0..5 {
            let gathered = world.gather_rows(&own, &rows, root)?.wait()?;
            assert_eq!(gathered.is_some(), rank.rank() == root);
            if let Some(gathered) = &gathered {
                let all: Vec<f32> = (0..5).flat_map(|rank| values(rank, rows[rank])).collect();
                assert_eq!(gathered.to_vec::<f32>()?, all);
            }
            let part = world.scatter_rows(gathered.as_ref(), &rows, &[WIDTH], DType::F32, root)?;
            let part = part.wait()?;
            assert_eq!(part.shape(), own.shape());
            assert_eq!(part.to_vec::<f32>()?, own.to_vec::<f32>()?);
        }
        let (short, root) = (&rows[..4], rank.rank());
        assert!(world.gather_rows(&own, short, root).is_err());
        let x = Some(&own);
        assert!(world.scatter_rows(x, short, &[WIDTH], DType::F32, root).is_err());
        assert!(world.scatter_rows(x, &[1; 5], &[3], DType::F32, root).is_err());
        Ok(())
    });
    results.unwrap();
}

/// A transport that loses results.
struct Forgetful(LocalCommunicator);

impl Communicator for Forgetful {
    fn group(&self) -> &Group {
        self.0.group()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn index(&self) -> usize {
        self.0.index()
    }

    fn device(&self) -> &Device {
        self.0.device()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        Ok(self.0.start(request, operands)?.map(|_| None))
    }
}

#[test]
fn a_transport_without_result_is_an_error() {
    let alone = Forgetful(LocalCommunicator::alone(0, &Device::cpu()).unwrap());
    let x = ops::full(alone.device(), &[1], DType::F32, 1.0).unwrap();
    let error = alone.all_gather(&x).unwrap().wait().unwrap_err();
    let expected = "all_gather: the transport returned no result; this is a bug in the transport";
    assert_eq!(error.to_string(), expected);
    assert_eq!(alone.reduce(&x, Reduction::Sum, 0).unwrap().wait().map(|x| x.is_none()), Ok(true));
}
