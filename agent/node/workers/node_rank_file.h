// SPDX-License-Identifier: Apache-2.0
// The raw output of one worker's stream in a file on its own host (--log-to node):
// DIRECTORY/JOB/GENERATION/rank00027.out (or .err). An existing file is overwritten, unless only
// this rank was restarted. The writer's thread creates, fills and closes the file. Thread: the
// writer's user.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/os/file_writer.h"

namespace ivy {

class NodeRankFile {
 public:
  struct Name {
    std::string directory;
    std::string job_id;
    std::uint32_t generation = 0;
    std::uint32_t rank = 0;
    int stream = 1;            // 1 standard output, 2 standard error.
    std::uint64_t offset = 0;  // The bytes that earlier processes of the rank have written there.
  };

  // Also creates missing directories (0755 less umask). The writer's Done reports failures.
  NodeRankFile(FileWriter& writer, const Name& name);

  void write(std::string_view bytes) { writer_->write(file_, bytes); }
  void close() { writer_->close(file_); }
  FileWriter::File file() const { return file_; }
  const std::string& path() const { return path_; }

 private:
  FileWriter* writer_;
  std::string path_;
  FileWriter::File file_ = 0;
};

}  // namespace ivy
