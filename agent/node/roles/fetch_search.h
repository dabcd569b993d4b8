// SPDX-License-Identifier: Apache-2.0
// Searches the files of --fetch on one host: a pattern's parts between slashes are matched as by a
// shell (fnmatch(3)), and `**` stands for any number of directories. Names with a leading dot match
// only a part with a leading dot. A directory that matches is taken with everything below it.
//
// A symbolic link is followed if the pattern names it literally. A link that a wildcard finds must
// lead into the directory where the wildcards start, or into the working directory: otherwise a
// link to a data set would bring the data set back. Links to directories are never followed below
// `**` or below a directory that is taken as a whole, so that there are no cycles.
//
// Thread: any; blocks for as long as the file systems do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ivy {

class FileSearch {
 public:
  struct File {
    std::uint32_t target = 0;
    std::string path;    // Where it goes: relative, without "." and "..".
    std::string opened;  // The path to open.
  };
  struct Problem {
    std::string path;  // Absolute.
    std::string why;
  };

  // `directory` is absolute. Calls on_entry() for each directory entry, for reports of progress.
  FileSearch(std::string directory, std::size_t max_files, std::function<void()> on_entry);

  // Returns whether any file matches.
  bool add(std::string_view pattern, std::uint32_t target);

  const std::vector<File>& files() const { return files_; }
  const std::vector<Problem>& problems() const { return problems_; }
  std::uint64_t bytes() const { return bytes_; }  // Of all files, as far as known.
  bool is_too_many() const { return is_too_many_; }

 private:
  struct Walk {
    std::vector<std::string> parts;
    bool is_absolute = false;
    std::string base;  // The physical path of the directory where the wildcards start.
    std::uint32_t target = 0;
  };
  // `path` is relative to the working directory or, for an absolute pattern, to "/".
  void walk(const Walk& walk, const std::string& path, std::size_t index, bool is_literal);
  void descend(const Walk& walk, const std::string& path, std::size_t index);
  void take(const Walk& walk, const std::string& path, bool is_literal);
  void take_tree(const Walk& walk, const std::string& path, bool with_hidden);
  void take_file(const Walk& walk, const std::string& path, std::uint64_t size);
  bool may_follow(const Walk& walk, const std::string& path);
  std::string absolute(const Walk& walk, const std::string& path) const;
  std::vector<std::string> entries(const Walk& walk, const std::string& path);
  void report(const std::string& path, const std::string& why);

  const std::string directory_;
  const std::size_t max_files_;
  const std::function<void()> on_entry_;
  std::string physical_directory_;
  std::vector<File> files_;
  std::vector<Problem> problems_;
  std::set<std::pair<std::uint32_t, std::string>> taken_;
  std::set<std::string> reported_;
  std::uint64_t bytes_ = 0;
  bool is_too_many_ = false;
  bool has_match_ = false;  // Of the pattern that is searched.
};

}  // namespace ivy
