// SPDX-License-Identifier: Apache-2.0
// One stream that users read: standard output, standard error, or both when they are the same
// terminal, pipe or file. Shows whole lines of many ranks and at most one unfinished line. On a
// terminal, a few lines below them are redrawn: the job's status, or the progress bars.
//
// Thread: the loop's. Lifetime: destroy it outside its events; lanes outlive their use here.
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

// One stream of one rank on its way to a console.
struct Lane {
  int rank = 0;
  int stream = 1;
  int host_index = 0;
  std::uint32_t number = 0;  // Among the lanes of its generation.
  std::string label;         // As it is written, with its colour.
  LineSplitter lines;
  ControlFilter filter{ControlPolicy::kColoursOnly};
  bool shown = true;          // False if --show-ranks leaves it out.
  bool dropping = false;      // --console-overflow=drop: bytes are dropped now.
  bool is_in_line = false;    // The last bytes kept did not end with a newline.
  bool lost_in_line = false;  // The last bytes dropped did not end with a newline.
  bool is_waiting = false;    // In the list of lanes with an unfinished line.
  bool state_is_new = false;  // A progress state that has not been shown.
  std::int64_t due_ns = 0;    // When the unfinished line is shown.
  bool due_is_for_state = false;
  std::uint64_t dropped_lines = 0;
  std::uint64_t cut_lines = 0;             // Lines longer than the splitter keeps.
  std::optional<std::uint64_t> last_line;  // Number of its last line on its console.
};

struct ConsoleStyle {
  bool is_terminal = false;   // Escape sequences may be written to it.
  bool pass_through = false;  // One rank without label: bytes are not changed.
  bool filters_controls = false;
  // Removes moves of the cursor from labelled lines; filters_controls, on a terminal, removes more.
  bool filters_moves = false;
  bool timestamps = false;
  bool folds = false;  // --dedup: equal lines of ranks are shown once.
  bool utf8 = true;
};

// The owner of a console: its ConsoleStream, and tests.
class ConsoleEvents {
 public:
  // Bytes of a host's output have left, or were dropped because there is no longer a reader.
  virtual void console_consumed(int host_index, std::uint64_t bytes) = 0;
  // has_room() may be true again.
  virtual void console_has_room() = 0;
  virtual void console_failed(int errno_value) = 0;

 protected:
  ~ConsoleEvents() = default;
};

class Console final : private ConsoleSinkEvents {
 public:
  Console(boost::asio::io_context& loop, int fd, ConsoleEvents& owner);

  // Before the first line of a generation.
  void set_style(const ConsoleStyle& style);
  const ConsoleStyle& style() const { return style_; }
  // True while so little text is unwritten that more may be formatted.
  bool has_room() const { return sink_.backlog() < kMostAheadBytes; }
  bool is_idle() const { return sink_.backlog() == 0 && fold_.is_empty(); }
  std::size_t unwritten() const { return sink_.backlog(); }
  std::uint64_t written() const { return sink_.written(); }
  bool has_failed() const { return sink_.has_failed(); }
  void check_reader() { sink_.check_reader(); }
  void flush();

  // Bytes of a lane; they count as consumed when the lines made of them have left.
  void show(Lane& lane, std::string_view bytes);
  // Shows the unfinished line now.
  void show_partial(Lane& lane);
  // Shows the newest state of a line, or of a group of lines, that is overwritten again and again:
  // below the others on a terminal, else as new lines.
  void show_state(Lane& lane);
  // --dedup: the lines that are held.
  LineFold& fold() { return fold_; }
  // Writes the held lines that are due by then.
  void release(std::int64_t until_ns);
  // Call when the stream has ended, or when following bytes were dropped: terminates the unfinished
  // line.
  void end_lane(Lane& lane);
  void cut_lane(Lane& lane);
  // Shows text of ivyrun itself on separate lines, with control characters escaped.
  void say(std::string_view text);
  // Replaces the line below the others; drawn by draw_bottom(). Escaped as in say().
  void set_status(const std::string& text);
  bool bottom_is_due() const { return bottom_changed_ && style_.is_terminal; }
  void draw_bottom();
  // Forgets the lanes of the ended generation.
  void forget_lanes();

 private:
  // Text formatted ahead of the reader: enough to keep a fast reader busy.
  static constexpr std::size_t kMostAheadBytes = 256u << 10;
  struct Grant {
    std::uint64_t end;  // When this many bytes have been written...
    std::uint64_t bytes;
    int host_index;  // ...this host may send `bytes` more.
  };
  // ConsoleSinkEvents
  void sink_moved() override;
  void sink_failed(int errno_value) override;

  void put(Lane& lane, const LinePiece& given);
  void write_group(const LineFold::Group& group);
  void pass(Lane& lane, std::string_view bytes);
  void begin_text();
  void begin_line(Lane& lane);
  void close_open_line();
  void append_clock();
  std::vector<std::string> bottom_text() const;
  void clear_bottom();
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
  Lane* open_ = nullptr;  // The lane whose unfinished line is at the cursor.
  bool open_is_coloured_ = false;
  std::string status_;
  // Newest progress states with their labels, by rank and stream: one row each, or the rows of a
  // group of bars.
  std::map<std::pair<int, int>, std::vector<std::string>> states_;
  std::size_t bottom_lines_ = 0;  // Shown below the others.
  bool bottom_changed_ = false;
  std::int64_t clock_second_ = -1;
  std::string clock_text_;  // The time of clock_second_, such as "12:34:56.".
};

}  // namespace ivy
