//! Plans: the placements of a model's parameters and seams on a mesh, as a table.

use std::fmt;

use glob::Pattern;
use meshgrad_autograd::{Buffer, Module, Param, Result, Seam};
use meshgrad_error::{Error, error};
use meshgrad_mesh::{Mesh, Placement, Sharding};

/// A table from names of parameters, buffers and seams to placements. Parameters that no row names
/// are replicated; seams that no row names redistribute nothing.
///
/// ```
/// use meshgrad_mesh::{Mesh, Placement};
/// use meshgrad_models::ModelPlan;
///
/// let mesh = Mesh::new(&[2], &["tp"])?;
/// let plan = ModelPlan::new(&mesh)
///     .place("*.up.weight", [("tp", Placement::shard(0))])
///     .place("*.down.weight", [("tp", Placement::shard(1))])
///     .place("*.mlp.output", [("tp", Placement::Replicate)]);
/// # let _ = plan;
/// # Ok::<(), meshgrad_mesh::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModelPlan {
    mesh: Mesh,
    rows: Vec<Row>,
    /// Of all seams beside a matrix product.
    chunks: usize,
}

#[derive(Clone, Debug)]
struct Row {
    names: String,
    /// Of parameters and buffers that are not on the plan's mesh.
    mesh: Option<Mesh>,
    placements: Vec<(String, Placement)>,
}

impl ModelPlan {
    /// A plan without rows.
    pub fn new(mesh: &Mesh) -> ModelPlan {
        ModelPlan { mesh: mesh.clone(), rows: Vec::new(), chunks: 1 }
    }

    /// Adds a row: everything whose name matches `names` gets these placements. `*` matches any
    /// characters and `?` one. The order of axes that shard one dim counts, the outermost first.
    #[must_use]
    pub fn place<S: AsRef<str>>(
        self,
        names: &str,
        placements: impl AsRef<[(S, Placement)]>,
    ) -> ModelPlan {
        self.add(names, None, placements.as_ref())
    }

    /// As [`ModelPlan::place`], for parameters and buffers on another mesh of the same ranks, such as
    /// experts.
    #[must_use]
    pub fn place_on<S: AsRef<str>>(
        self,
        mesh: &Mesh,
        names: &str,
        placements: impl AsRef<[(S, Placement)]>,
    ) -> ModelPlan {
        self.add(names, Some(mesh.clone()), placements.as_ref())
    }

    fn add<S: AsRef<str>>(
        mut self,
        names: &str,
        mesh: Option<Mesh>,
        placements: &[(S, Placement)],
    ) -> ModelPlan {
        let placements = placements.iter();
        let placements = placements.map(|(axis, at)| (axis.as_ref().to_owned(), at.clone()));
        self.rows.push(Row { names: names.to_owned(), mesh, placements: placements.collect() });
        self
    }

    /// Sets the number of chunks of all seams beside a matrix product ([`Seam::overlap`]); 1 at
    /// first.
    #[must_use]
    pub fn overlap(mut self, chunks: usize) -> ModelPlan {
        self.chunks = chunks;
        self
    }

    /// The plan without the rows of exactly these names, for example to place them otherwise.
    #[must_use]
    pub fn without(mut self, names: &str) -> ModelPlan {
        self.rows.retain(|row| row.names != names);
        self
    }

    /// The names of the rows.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.names.as_str())
    }

    /// The plan without the rows that match nothing in `module`.
    #[must_use]
    pub fn matching(mut self, module: &impl Module) -> ModelPlan {
        let named = Named::of(module);
        self.rows.retain(|row| match Pattern::new(&row.names) {
            Ok(pattern) => named.iter().any(|it| pattern.matches(it.name())),
            Err(_) => true,
        });
        self
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Gives the parameters, buffers and seams of `module` the placements of the plan, as rank
    /// `rank`. Do this before [`Module::materialize`] or loading, which then create this rank's
    /// part only. All names and placements are checked before anything changes.
    ///
    /// # Errors
    /// When rows do not fit the module, with all problems; as [`Param::shard`].
    pub fn apply(&self, module: &impl Module, rank: usize) -> Result<()> {
        for (named, sharding) in self.shardings(module)? {
            match (named, sharding) {
                (Named::Param(param), Some(sharding)) => param.shard(&sharding, rank)?,
                (Named::Buffer(buffer), Some(sharding)) => buffer.shard(&sharding, rank)?,
                (Named::Seam(seam), _) => self.place_seam(&seam),
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives the seams of `module` the placements of the plan. Parameters and buffers keep theirs, so
    /// a model can have other seams for a while, such as to decode.
    pub fn apply_to_seams(&self, module: &impl Module) {
        for seam in module.seams() {
            self.place_seam(&seam);
        }
    }

    fn place_seam(&self, seam: &Seam) {
        let row = self.row(seam.name()).ok().flatten();
        seam.place(row.map_or(&[][..], |row| &row.placements));
        seam.overlap(self.chunks);
    }

    /// Everything that has a name in `module`, with the sharding of parameters and buffers.
    fn shardings(&self, module: &impl Module) -> Result<Vec<(Named, Option<Sharding>)>> {
        let named = Named::of(module);
        let mut problems = self.unmatched(&named);
        let mut shardings = Vec::new();
        for one in named {
            match self.sharding(&one) {
                Ok(sharding) => shardings.push((one, sharding)),
                Err(problem) => problems.push(problem),
            }
        }
        match problems.is_empty() {
            true => Ok(shardings),
            false => Err(does_not_fit(&problems)),
        }
    }

    /// Rows that are invalid or match nothing.
    fn unmatched(&self, named: &[Named]) -> Vec<String> {
        let problem = |row: &Row| match Pattern::new(&row.names) {
            Err(error) => Some(format!("`{}` is not a valid pattern: {}", row.names, error.msg)),
            Ok(pattern) if named.iter().any(|it| pattern.matches(it.name())) => None,
            Ok(_) => {
                let nearest = nearest(&row.names, named);
                let hint = nearest.map(|name| format!("; the most similar name is `{name}`"));
                let hint = hint.unwrap_or_default();
                Some(format!("`{}` matches no parameter, buffer or seam{hint}", row.names))
            }
        };
        self.rows.iter().filter_map(problem).collect()
    }

    /// The sharding of a parameter or buffer; `None` for a seam, whose axes are checked.
    fn sharding(&self, named: &Named) -> Result<Option<Sharding>, String> {
        let row = self.row(named.name())?;
        let placements = row.map_or(&[][..], |row| &row.placements);
        let mesh = row.and_then(|row| row.mesh.as_ref()).unwrap_or(&self.mesh);
        let problem = |cause: Error| {
            let shape = named.extents().map(|shape| format!(" {shape:?}")).unwrap_or_default();
            let placements = text(placements);
            format!("`{}`{shape} cannot be placed as {placements}: {cause}", named.name())
        };
        let Some(shape) = named.extents() else {
            let axes = placements.iter();
            let known = axes.map(|(axis, _)| mesh.axis(axis).map(drop));
            let known: Result<()> = known.collect();
            return known.map(|()| None).map_err(&problem);
        };
        let sharding = Sharding::new(mesh, placements, shape).map_err(problem)?;
        match sharding.partials().first() {
            None => Ok(Some(sharding)),
            Some((axis, _)) => Err(format!(
                "`{}` is partial on axis `{axis}`: replicate or shard it",
                named.name()
            )),
        }
    }

    /// The one row that matches `name`.
    fn row(&self, name: &str) -> Result<Option<&Row>, String> {
        let matches = |row: &&Row| Pattern::new(&row.names).is_ok_and(|names| names.matches(name));
        let mut rows = self.rows.iter().filter(matches);
        let Some(first) = rows.next() else {
            return Ok(None);
        };
        match rows.next() {
            None => Ok(Some(first)),
            Some(second) => Err(format!(
                "`{name}` matches two rows, `{}` and `{}`: keep one",
                first.names, second.names
            )),
        }
    }
}

/// A line for each row: the names, then the placements.
impl fmt::Display for ModelPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.names.len()).max().unwrap_or(0);
        for row in &self.rows {
            writeln!(f, "{:width$}  {}", row.names, text(&row.placements))?;
        }
        Ok(())
    }
}

/// What a row can name.
enum Named {
    Param(Param),
    Buffer(Buffer),
    Seam(Seam),
}

impl Named {
    fn of(module: &impl Module) -> Vec<Named> {
        let params = module.params().into_iter().map(Named::Param);
        let buffers = module.buffers().into_iter().map(Named::Buffer);
        let seams = module.seams().into_iter().map(Named::Seam);
        params.chain(buffers).chain(seams).collect()
    }

    fn name(&self) -> &str {
        match self {
            Named::Param(param) => param.name(),
            Named::Buffer(buffer) => buffer.name(),
            Named::Seam(seam) => seam.name(),
        }
    }

    /// The global shape; `None` for a seam.
    fn extents(&self) -> Option<&[usize]> {
        match self {
            Named::Param(param) => Some(param.shape()),
            Named::Buffer(buffer) => Some(buffer.shape()),
            Named::Seam(_) => None,
        }
    }
}

/// The name that is most like `pattern`.
fn nearest(pattern: &str, named: &[Named]) -> Option<String> {
    let likeness = |it: &&Named| (strsim::jaro_winkler(pattern, it.name()) * 1e6) as u64;
    let nearest = named.iter().max_by_key(likeness)?;
    Some(nearest.name().to_owned())
}

fn text(placements: &[(String, Placement)]) -> String {
    let text = placements.iter().map(|(axis, at)| format!("{axis}: {at}"));
    text.collect::<Vec<_>>().join(", ")
}

/// The error of a plan with these problems.
pub(crate) fn does_not_fit(problems: &[String]) -> Error {
    let lines: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    error!(Invalid, "the plan does not fit the model:{lines}")
}
