//! The pages, and what of Markdown the tests read: fenced blocks, headings and links.

use std::path::{Path, PathBuf};

/// A page of the documentation.
pub(crate) struct Page {
    /// The file, from the root of the repository.
    pub(crate) file: PathBuf,
    pub(crate) text: String,
}

/// A fenced block.
pub(crate) struct Block {
    /// What follows the opening fence: `yaml`, `yaml,fragment`.
    pub(crate) language: String,
    pub(crate) text: String,
    /// The line of the opening fence, from 1.
    pub(crate) line: usize,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The book's folder of pages.
pub(crate) fn book() -> PathBuf {
    root().join("docs/src")
}

/// README.md and every page of the book.
pub(crate) fn all() -> Vec<Page> {
    let mut files = vec![root().join("README.md")];
    collect(&book(), &mut files);
    read(files)
}

/// The pages for those who change the code: the architecture, how to contribute, the decisions.
pub(crate) fn for_contributors() -> Vec<Page> {
    let mut files = vec![root().join("ARCHITECTURE.md"), root().join("CONTRIBUTING.md")];
    collect(&root().join("docs/decisions"), &mut files);
    read(files)
}

fn read(mut files: Vec<PathBuf>) -> Vec<Page> {
    files.sort();
    let page = |file: PathBuf| Page {
        text: std::fs::read_to_string(&file).unwrap(),
        file: file.strip_prefix(root()).unwrap().to_owned(),
    };
    files.into_iter().map(page).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
}

impl Page {
    /// Its fenced blocks.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (line, text) in (1..).zip(self.text.lines()) {
            match (&mut open, text.strip_prefix("```")) {
                (None, Some(language)) => {
                    let language = language.to_owned();
                    open = Some(Block { language, text: String::new(), line });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(block), None) => {
                    block.text.push_str(text);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.file.display());
        blocks
    }

    /// The lines outside of fenced blocks, with their numbers.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut inside = false;
        (1..).zip(self.text.lines()).filter(move |(_, text)| {
            let fence = text.starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
    }

    /// The anchors of its headings, as mdBook and GitHub make them.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for (_, line) in self.prose() {
            let title = line.trim_start_matches('#');
            if title.len() == line.len() || !title.starts_with(' ') {
                continue;
            }
            let letters = title.trim().chars().filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                letter if letter.is_alphanumeric() => letter.to_lowercase().next(),
                _ => None,
            });
            let anchor: String = letters.collect();
            let same = anchors.iter().filter(|other| **other == anchor).count();
            anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
        }
        anchors
    }

    /// The texts in backticks, with their lines.
    pub(crate) fn inline_code(&self) -> Vec<(usize, String)> {
        let mut code = Vec::new();
        for (line, text) in self.prose() {
            // A text in backticks does not break over two lines.
            assert!(
                text.matches('`').count() % 2 == 0,
                "{}:{line}: a backtick",
                self.file.display()
            );
            code.extend(text.split('`').skip(1).step_by(2).map(|text| (line, text.to_owned())));
        }
        code
    }

    /// The targets of its links and images, with their lines.
    pub(crate) fn links(&self) -> Vec<(usize, String)> {
        let mut links = Vec::new();
        for (line, text) in self.prose() {
            // A link may break after its text, so only the end of the text and the target are read.
            for rest in text.split("](").skip(1) {
                links.push((line, rest.split(')').next().unwrap().to_owned()));
            }
        }
        links
    }
}
