// SPDX-License-Identifier: Apache-2.0
// Writes the files of --fetch. A file is written to a temporary name and renamed when it is
// complete. Everything happens below directories that this object has created itself, no link in
// them is followed, and none is created, so a host cannot write anywhere else.
//
// Thread: any, one at a time; blocks for as long as the file system does.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/fetch.pb.h"

namespace ivy {

// A directory that gets files: DIR/HOST or DIR/rankNNNNN.
struct FetchTarget {
  std::string directory;  // DIR of --fetch.
  std::string name;
  std::size_t host = 0;  // The only host that may write there.
};

class FetchWriter {
 public:
  struct Problem {
    std::string path;  // As the host has sent it.
    std::string why;
  };
  // The result of some parts.
  struct Written {
    std::uint64_t files = 0;       // Completed.
    std::uint64_t file_bytes = 0;  // Of these.
    std::uint64_t bytes = 0;       // Of all parts, uncompressed.
    std::vector<Problem> problems;
  };

  // umask: of the shell that runs ivyrun.
  FetchWriter(std::vector<FetchTarget> targets, unsigned umask);
  ~FetchWriter() { abandon_all(); }
  FetchWriter(const FetchWriter&) = delete;
  FetchWriter& operator=(const FetchWriter&) = delete;

  // Chooses a directory for each DIR in which no entry of this job exists: DIR, DIR.2, ..., and
  // creates it. Returns them, in the order of their first target. Fails with ResourceExhausted if
  // one has less space than `bytes`.
  Result<std::vector<std::string>> open(std::uint64_t bytes);

  // Takes a part of this host's present file. Problems of a single file are in the result. An error
  // ends the fetch: this disk is full, or the host has broken the protocol.
  Result<void> take(std::size_t host, const FetchPart& part, Written& written);
  // Removes the incomplete file of this host, if any.
  void abandon(std::size_t host);
  void abandon_all();

 private:
  struct Root {
    Descriptor fd;
    std::string parent;    // Path of the last file's directory, relative to the root...
    Descriptor parent_fd;  // ...and the directory; empty if it is the root.
  };
  struct Incoming {
    Descriptor fd{};  // Empty: the file has failed, and the rest of it is ignored.
    FetchFile file;
    std::string temporary;
    std::uint64_t received = 0;
    bool is_open = false;  // A file was announced, and is not complete.
  };
  Result<void> begin_file(std::size_t host, const FetchFile& file, Incoming& incoming);
  Result<void> finish_file(Incoming& incoming);
  Result<Root*> root_of(std::uint32_t target);
  Result<int> parent_of(Root& root, const std::string& path);

  std::vector<FetchTarget> targets_;
  const unsigned umask_;
  std::map<std::uint32_t, Root> roots_;
  std::map<std::size_t, Incoming> incoming_;
  std::uint64_t files_ = 0;  // Numbers the temporary names.
};

}  // namespace ivy
