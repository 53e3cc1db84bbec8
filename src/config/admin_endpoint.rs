//! Where the admin listener of a configuration is, for commands that ask a running process.
//!
//! Only the section `admin` is read, and no file that it names: a configuration with mistakes elsewhere, or a certificate
//! that is gone, must not keep operators from asking the process that serves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::error::ConfigErrors;
use super::error_list::{ErrorList, SourceFile};
use super::files::read_text_file;
use super::reader::Located;
use super::sections::listeners::socket_address;
use super::source::{self, MAX_BYTES};

/// The admin listener as a file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminEndpoint {
    /// Its address.
    pub address: SocketAddr,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
}

/// Reads where the admin listener is; `None` if the file has no section `admin`.
///
/// # Errors
/// The file cannot be read as YAML, or the section has a mistake.
pub fn admin_endpoint(file: &Path) -> Result<Option<AdminEndpoint>, ConfigErrors> {
    let main = SourceFile::main(file);
    let name = main.name.clone();
    let refused = |errors| ConfigErrors { file: name.clone(), errors };
    let (text, _) = read_text_file(file, MAX_BYTES as u64).map_err(|error| refused(vec![error]))?;
    let tree = source::parse(&text, 0, "begin with version: 1").map_err(refused)?;
    let folder = main.folder.clone();
    let files = vec![main];
    let errors = ErrorList::new(&files);
    let endpoint = read(Located::root(&tree, &errors), &folder);
    let errors = errors.into_sorted();
    if errors.is_empty() { Ok(endpoint) } else { Err(refused(errors)) }
}

fn read(root: Located<'_>, folder: &Path) -> Option<AdminEndpoint> {
    let mut map = root.mapping()?.get("admin")?.mapping()?;
    let address_at = map.require("address", "write address: 127.0.0.1:9900")?;
    let address =
        address_at.parse_or_env(socket_address, "an address with a port, as 127.0.0.1:9900")?;
    let token_file = map.get("token_file").and_then(|at| at.text().map(|text| folder.join(text)));
    Some(AdminEndpoint { address, token_file })
}
