//! An RDMA device beside perftest, from what `cargo xtask compare --device NAME` printed.

/// The title of its section.
pub(crate) const TITLE: &str = "An RDMA device";

/// The section, with the table as it was printed.
pub(crate) fn section(printed: &str) -> String {
    format!(
        "\n## {TITLE}\nDoorbell beside perftest and cmtime on the same device, in turn. On the \
         emulated device of a virtual machine only the ratios mean something.\n\n```sh\ncargo \
         xtask compare --device rxe0 --results\n```\n\n```text\n{}\n```\n",
        printed.trim_end()
    )
}
