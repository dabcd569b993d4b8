// SPDX-License-Identifier: Apache-2.0
// Reads the --log-dir files of one job, from their start or near their end up to their current end,
// and again while they grow. Keeps no descriptor between two calls, so that thousands of files can
// be followed. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

class LogReader {
 public:
  // stream: 1 is standard output, 2 is standard error.
  using Feed = std::function<void(int rank, int stream, std::string_view bytes)>;

  // folder: the directory that contains rank00000.out.
  LogReader(const std::string& folder, const std::vector<int>& ranks);
  // Starts with the last lines of each file; truncates a long first line at its start.
  void skip_to_last(int lines);
  // Passes at most `max_bytes` new bytes to `feed`, file by file. Returns true once the end of
  // every file was reached, and false if the limit was reached first; then there may be more.
  bool read(std::size_t max_bytes, const Feed& feed);
  // Makes the next read() start with the first file again, so that it misses nothing written
  // earlier.
  void start_over() { next_ = 0; }
  // If no file could be opened so far, returns the first one's path and the reason; otherwise an
  // empty text.
  std::string error() const { return any_opened_ ? "" : error_; }

 private:
  struct File {
    int rank;
    int stream;
    std::string path;
    std::uint64_t offset = 0;
  };
  // Reads one file. Returns true if its end was reached or it cannot be opened, and false if the
  // budget was used up.
  bool read_file(File& file, std::size_t& budget, const Feed& feed);

  std::vector<File> files_;
  std::size_t next_ = 0;  // Index of the file with which the next read() starts.
  bool any_opened_ = false;
  std::string error_;
};

}  // namespace ivy
