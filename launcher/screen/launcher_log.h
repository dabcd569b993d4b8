// SPDX-License-Identifier: Apache-2.0
// LOGDIR/ivyrun.log: ivyrun's messages about a job that moves to the background. A separate thread
// opens and writes the file (proto/os/file_writer.h). Thread: the loop's.
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

  // Makes the directory and opens the file for appending; several jobs may share it. take_done()
  // calls `opened` once.
  void open(std::function<void(const Result<void>&)> opened);
  bool is_open() const { return file_ != 0; }
  // Appends a message. Control characters are escaped, because the log is also read on terminals.
  // Messages from before open() are kept and written once the file is open.
  void write(std::string_view raw);
  // Handles results of the writer's thread since the last call.
  void take_done();
  bool is_idle() const { return writer_.is_idle(); }
  // The file's descriptor, which becomes standard output and error of the background process.
  int descriptor() const { return descriptor_->get(); }
  // Describes the first failed write, or the first line that could not be queued; empty: none.
  const std::string& write_error() const { return write_error_; }

 private:
  const std::string folder_;
  const std::string job_id_;
  FileWriter writer_;
  FileWriter::File file_ = 0;  // 0 until the file is open.
  // The file's descriptor, set on the writer's thread.
  std::shared_ptr<Descriptor> descriptor_ = std::make_shared<Descriptor>();
  std::function<void(const Result<void>&)> opened_;
  std::string early_;  // Messages from before the file was open.
  std::string write_error_;
};

}  // namespace ivy
