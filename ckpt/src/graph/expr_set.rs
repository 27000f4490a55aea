//! Sets of expressions.

use super::ids::Expr;

/// Expressions of one graph, whose numbers are small and dense.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExprSet {
    /// By number.
    has: Vec<bool>,
}

impl ExprSet {
    /// Adds an expression and returns whether it is new.
    pub(crate) fn insert(&mut self, expr: Expr) -> bool {
        let at = expr.index();
        if at >= self.has.len() {
            self.has.resize((at + 1).next_power_of_two(), false);
        }
        !std::mem::replace(&mut self.has[at], true)
    }

    pub(crate) fn contains(&self, expr: Expr) -> bool {
        self.has.get(expr.index()).copied().unwrap_or(false)
    }
}

impl Extend<Expr> for ExprSet {
    fn extend<I: IntoIterator<Item = Expr>>(&mut self, exprs: I) {
        for expr in exprs {
            self.insert(expr);
        }
    }
}
