// SPDX-License-Identifier: Apache-2.0
// Writes LOGDIR/ivyrun.log: the messages of ivyrun after its job has moved to the background. A
// FileWriter opens and writes the file on a separate thread. Thread: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/screen/rank_file_set.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/os/file_writer.h"

namespace ivy {

class LauncherLog {
 public:
  LauncherLog(std::string folder, std::string job_id, FileEvents& owner);
  ~LauncherLog();

  static std::string path_in(const std::string& folder) { return folder + "/ivyrun.log"; }

  // Starts to make the directory and to open the file for appending, because several jobs may share
  // it. take_done() calls `opened` once, with the result.
  void open(std::function<void(const Result<void>&)> opened);
  // True once open() was called.
  bool is_open() const { return file_ != 0; }
  // Appends a message. Control characters are escaped, because the log is also read on terminals.
  // Messages from before open() are kept, and written to the file after it.
  void write(std::string_view raw);
  // Handles the writer's results since the last call: calls `opened`, and notes errors.
  void take_done();
  bool is_idle() const { return writer_.is_idle(); }
  // The file's descriptor, valid after `opened` was called without an error. It becomes standard
  // output and error of the background process.
  int descriptor() const { return descriptor_->get(); }
  // Describes the first failed write, or the first line that could not be queued; empty: none.
  const std::string& write_error() const { return write_error_; }

 private:
  const std::string folder_;
  const std::string job_id_;
  FileWriter writer_;
  FileWriter::File file_ = 0;  // 0 until open() is called.
  // The file's descriptor, set on the writer's thread.
  std::shared_ptr<Descriptor> descriptor_ = std::make_shared<Descriptor>();
  std::function<void(const Result<void>&)> opened_;
  std::string early_;  // Messages from before open().
  std::string write_error_;
};

}  // namespace ivy
