// SPDX-License-Identifier: Apache-2.0
// One stream that users read: standard output, standard error, or both when they are the same
// terminal, pipe or file. Turns the bytes of many sources into labelled lines.
//
// A *source* is one stream of one rank, on its way to a console. The console writes whole lines,
// and at most one unfinished line at the end: the *open* line, which it closes with a marker if
// another source writes next. On a terminal, a few lines below it, the *footer*, are redrawn: the
// job's status line, or the newest state of the ranks' progress bars. With --dedup, a finished line
// is *held* for up to 100 ms in a LineFold, in case other ranks print the same line.
//
// ConsoleStream owns a console and decides when each of these is shown; ConsoleSink writes the
// text.
//
// Thread: the loop's. Lifetime: destroy it outside its events; sources outlive their use here.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/screen/console_sink.h"
#include "launcher/screen/control_filter.h"
#include "launcher/screen/line_fold.h"
#include "launcher/screen/line_splitter.h"

namespace ivy {

// One stream of one rank, with the state of its current line. Class Output owns it; ConsoleStream
// and Console keep their parts of the state here.
struct OutputSource {
  int rank = 0;
  int stream = 1;  // 1: standard output, 2: standard error.
  int host_index = 0;
  std::uint32_t number = 0;  // Its index in the list of its ConsoleStream.
  std::string label;         // Printed before each of its lines, with its colour; may be empty.
  LineSplitter lines;        // Splits its bytes into lines.
  ControlFilter filter{ControlPolicy::kColoursOnly};  // Removes control sequences from its bytes.
  bool is_shown = true;                               // False if --show-ranks leaves it out.
  bool is_dropping = false;   // --console-overflow=drop: its bytes are being dropped.
  bool is_in_line = false;    // The last bytes that were kept did not end with a newline.
  bool lost_in_line = false;  // The last bytes that were dropped did not end with a newline.
  bool is_waiting = false;    // It is in ConsoleStream's list of sources with an unfinished line.
  bool state_is_new = false;  // Its progress bars have a state that has not been shown.
  std::int64_t due_ns = 0;    // When its unfinished line is shown, on monotonic_ns().
  bool due_is_for_state = false;           // due_ns is for the state of a progress bar.
  std::uint64_t dropped_lines = 0;         // By --console-overflow=drop, for the summary.
  std::uint64_t cut_lines = 0;             // Lines that were split or cut short, for the summary.
  std::optional<std::uint64_t> last_line;  // Number of its last line on its ConsoleStream.
};

// How a console formats lines. Fixed for one generation: one run of all workers of the job
// (launcher/job/job.h).
struct ConsoleStyle {
  bool is_terminal = false;  // Escape sequences may be written to it.
  // Only one rank is shown, without a label: its bytes are written as they are.
  bool pass_through = false;
  bool filters_controls = false;  // OutputSource::filter removes control sequences for a terminal.
  // OutputSource::filter removes moves of the cursor from labelled lines in a pipe or file.
  bool filters_moves = false;
  bool timestamps = false;  // --timestamps: each line starts with the time of day.
  bool folds = false;       // --dedup: equal lines of several ranks are shown once.
  bool utf8 = true;         // Markers may use characters beyond ASCII.
};

// The owner of a console: its ConsoleStream, and tests.
class ConsoleEvents {
 public:
  // Bytes of a host's output were written, or were dropped because the reader has exited.
  virtual void console_consumed(int host_index, std::uint64_t bytes) = 0;
  // has_room() may have become true.
  virtual void console_has_room() = 0;
  // Writing failed. Called once; everything is dropped from then on.
  virtual void console_failed(int errno_value) = 0;

 protected:
  ~ConsoleEvents() = default;
};

class Console final : private ConsoleSinkEvents {
 public:
  Console(boost::asio::io_context& loop, int fd, ConsoleEvents& owner);

  // Call before the first line of a generation.
  void set_style(const ConsoleStyle& style);
  const ConsoleStyle& style() const { return style_; }
  // True if little text is unwritten, so that more lines may be formatted.
  bool has_room() const { return sink_.backlog() < kMaxAheadBytes; }
  // True if all text has been written and no line is held.
  bool is_idle() const { return sink_.backlog() == 0 && fold_.is_empty(); }
  // Bytes of formatted text that have not been written.
  std::size_t unwritten() const { return sink_.backlog(); }
  // Bytes that have been written, or dropped after a failure.
  std::uint64_t written() const { return sink_.written(); }
  bool has_failed() const { return sink_.has_failed(); }
  // Fails with EPIPE if the reader has exited, even if nothing is written.
  void check_reader() { sink_.check_reader(); }
  // Writes as much text as the descriptor takes now.
  void flush();

  // Formats bytes of a source. They count as consumed when the lines made of them have been
  // written.
  void show(OutputSource& source, std::string_view bytes);
  // Shows the source's unfinished line as the open line.
  void show_partial(OutputSource& source);
  // Shows the newest state of a line, or of a group of lines, that its rank overwrites repeatedly:
  // in the footer of a terminal, elsewhere as new lines.
  void show_state(OutputSource& source);
  // The lines that --dedup holds.
  LineFold& fold() { return fold_; }
  // Writes the held lines that are due at this time.
  void release(std::int64_t until_ns);
  // Terminate the source's unfinished line: its stream has ended, or its following bytes were
  // dropped.
  void end_source(OutputSource& source);
  void cut_source(OutputSource& source);
  // Writes ivyrun's own text on separate lines, with control characters escaped. Held lines come
  // first.
  void print(std::string_view text);
  // Replaces the status line, which draw_footer() draws. Empty: no status line. Escaped as in
  // print().
  void set_status(const std::string& text);
  // True if the footer differs from the screen.
  bool footer_is_due() const { return footer_changed_ && style_.is_terminal; }
  // Redraws the footer, unless a line is open or text is still unwritten.
  void draw_footer();
  // Writes the held lines, closes the open line and clears the footer. Call before the sources are
  // destroyed.
  void forget_sources();

 private:
  // Limit of formatted text that waits: enough to keep a fast reader busy.
  static constexpr std::size_t kMaxAheadBytes = 256u << 10;
  // Credit that a host gets back once the text made of its bytes has left.
  struct Grant {
    std::uint64_t end;  // Due when the sink has written this many bytes in total...
    std::uint64_t bytes;
    int host_index;  // ...then this host may send `bytes` more.
  };
  // ConsoleSinkEvents
  void sink_progressed() override;
  void sink_failed(int errno_value) override;

  void put(OutputSource& source, const LinePiece& given);
  void write_group(const LineFold::Group& group);
  void pass(OutputSource& source, std::string_view bytes);
  void begin_text();
  void begin_line(OutputSource& source);
  void close_open_line();
  void append_clock();
  std::vector<std::string> footer_text() const;
  void clear_footer();
  void release_grants();
  std::string& out() { return sink_.buffer(); }

  ConsoleEvents& owner_;
  ConsoleSink sink_;
  ConsoleStyle style_;
  const int fd_;
  std::deque<Grant> grants_;
  LineFold fold_;
  // Labels of ranks with a held line, by rank and stream.
  std::map<std::pair<int, int>, std::string_view> labels_;
  OutputSource* open_ = nullptr;  // The source whose unfinished line is at the cursor; null: none.
  bool open_is_coloured_ = false;
  std::string status_;  // The status line; empty if there is none.
  // The newest states of progress bars, with their labels, by rank and stream: one row for a single
  // bar, several for a group of bars.
  std::map<std::pair<int, int>, std::vector<std::string>> states_;
  std::size_t footer_lines_ = 0;    // Lines of the footer that are on the screen.
  bool footer_changed_ = false;     // The footer differs from the screen.
  std::int64_t clock_second_ = -1;  // The second for which clock_text_ was made.
  std::string clock_text_;          // The time of day, such as "12:34:56.".
};

}  // namespace ivy
