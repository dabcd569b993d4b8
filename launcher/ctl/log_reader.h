// SPDX-License-Identifier: Apache-2.0
// Reads the files of --log-dir of one job, from their beginning or near their end, as far as they
// are now; again and again while they grow. Keeps no descriptor between two calls, so thousands of
// files cost none. Thread: any, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ivy {

class LogReader {
 public:
  using Feed = std::function<void(int rank, int stream, std::string_view bytes)>;

  // folder: the one in which rank00000.out lies.
  LogReader(const std::string& folder, const std::vector<int>& ranks);
  // Begins with the last lines of each file; a long last line is cut at its beginning.
  void begin_with_last(int lines);
  // Feeds at most `most_bytes` new bytes, file by file. False: there may be more.
  bool read(std::size_t most_bytes, const Feed& feed);
  // Makes the next read() start with the first file again, so that it misses nothing written
  // earlier.
  void start_over() { next_ = 0; }
  // No file could be opened so far: the first one's path and why; empty otherwise.
  std::string trouble() const { return any_opened_ ? "" : trouble_; }

 private:
  struct File {
    int rank;
    int stream;
    std::string path;
    std::uint64_t offset = 0;
  };
  // Reads one file; false when the budget is used up.
  bool read_file(File& file, std::size_t& budget, const Feed& feed);

  std::vector<File> files_;
  std::size_t next_ = 0;  // Position of the next read().
  bool any_opened_ = false;
  std::string trouble_;
};

}  // namespace ivy
