#include "cuboid/value/schedule_csv.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/core/error.h"

namespace cuboid {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kFolder = CUBOID_TEST_DATA "/cases/sched/";

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string refusal(const std::string& text, CsvDialect dialect = CsvDialect::automatic) {
  try {
    parse_schedule_csv(text, "x.csv", dialect);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

std::vector<std::string> cells(const std::vector<Action>& row) {
  std::vector<std::string> texts;
  for (const Action& action : row) texts.push_back(to_string(action));
  return texts;
}

TEST(ScheduleCsv, ReadsAndWritesTheCases) {
  struct Case {
    const char* file;
    int ranks, stages, micro_batches;
  };
  for (const Case& c : {Case{"ok-1f1b-pp4-mb8.csv", 4, 4, 8}, Case{"ok-gpipe-pp2-mb3.csv", 2, 2, 3},
                        Case{"ok-vshape-pp2-4stages-mb2.csv", 2, 4, 2}, Case{"bad-deadlock-order.csv", 2, 2, 2},
                        Case{"bad-full-b-and-w.csv", 2, 2, 2}, Case{"bad-missing-backward.csv", 2, 2, 2}}) {
    const auto read = read_schedule_csv(kFolder + c.file);
    EXPECT_EQ(read.schedule.name, kFolder + c.file);
    EXPECT_EQ(read.schedule.ranks(), c.ranks);
    EXPECT_EQ(read.schedule.stages, c.stages);
    EXPECT_EQ(read.schedule.micro_batches, c.micro_batches);
    EXPECT_THAT(read.notes, IsEmpty());
    EXPECT_EQ(to_csv(read.schedule), contents(kFolder + c.file));
  }
  EXPECT_THAT(read_schedule_csv(kFolder + "ok-vshape-pp2-4stages-mb2.csv").schedule.rank_of_stage(),
              ElementsAre(0, 1, 1, 0));
}

TEST(ScheduleCsv, BlanksLineEndsAndIdleCells) {
  const auto expected = parse_schedule_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "x.csv").schedule;
  EXPECT_EQ(parse_schedule_csv(" 0F0 ,\t0F1,0B0 ,0B1\r\n1F0, 1B0,1F1 , 1B1\r\n\r\n", "x.csv").schedule, expected);
  EXPECT_EQ(parse_schedule_csv("0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1,", "x.csv").schedule, expected);
}

TEST(ScheduleCsv, EveryAction) {
  const std::string text =
      "0UNSHARD,0F0,0SEND_F0,0F10,0SEND_F10,0RECV_B0,0I0,0W0,0RECV_B10,0B10,0RESHARD,0REDUCE_GRAD\n"
      "12RECV_F7,12F7,12I7,12W7,12SEND_B7\n";
  const auto schedule = parse_schedule_csv(text, "x.csv").schedule;
  EXPECT_EQ(to_csv(schedule), text);
  EXPECT_EQ(schedule.stages, 13);
  EXPECT_EQ(schedule.micro_batches, 11);
  EXPECT_EQ(schedule.rows[1][0], (Action{ActionKind::recv_forward, 12, 7}));
  EXPECT_EQ(schedule.rows[0][0], (Action{ActionKind::unshard, 0, -1}));
}

TEST(ScheduleCsv, TransfersDoNotCountMicroBatches) {
  // A leftover receive must not invent eight micro-batches; verify refuses it.
  EXPECT_EQ(parse_schedule_csv("0F0,0B0,1RECV_F9", "x.csv").schedule.micro_batches, 1);
}

TEST(ScheduleCsv, Overlap) {
  const std::string text = "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0I1)OVERLAP_F_B,0B2,0W1\n";
  const auto schedule = parse_schedule_csv(text, "x.csv").schedule;
  EXPECT_THAT(cells(schedule.rows[0]), ElementsAre("0F0", "0F1", "0B0", "0F2", "0I1", "0B2", "0W1"));
  EXPECT_TRUE(schedule.rows[0][1].overlapped);
  EXPECT_FALSE(schedule.rows[0][0].overlapped || schedule.rows[0][2].overlapped);
  EXPECT_EQ(to_csv(schedule), text);
  for (const char* bad : {"(0F1;0B0)OVERLAP", "(0F1;0B0)", "(0F1;0B0;0F2)OVERLAP_F_B", "(0F1)OVERLAP_F_B", "(0F1;0B0",
                          "(0F1;0B0)OVERLAP_F_B7"}) {
    EXPECT_THAT(refusal(bad), HasSubstr("is no overlap of two actions, as (0F7;7B3)OVERLAP_F_B")) << bad;
  }
  EXPECT_THAT(refusal("(0B1;0F0)OVERLAP_F_B"), HasSubstr("overlaps other actions than an F and a B or I"));
  EXPECT_THAT(refusal("(0F1;0Q0)OVERLAP_F_B"), HasSubstr("'0Q0' has no known action"));
}

TEST(ScheduleCsv, EachBadCellAlone) {
  const std::pair<const char*, const char*> cases[] = {
      {"F1", "'F1' has no stage in front"},
      {"0Q1", "'0Q1' has no known action"},
      {"0F1junk", "'0F1junk' has trailing characters"},
      {"-1F0", "'-1F0' has no stage in front"},
      {"0F", "'0F' has no micro-batch"},
      {"0B 0", "'0B 0' has no known action"},
      {"0F-1", "'0F-1' has no known action"},
      {"0f0", "'0f0' has no known action"},
      {"0F1.5", "'0F1.5' has trailing characters"},
      {"0F0 0B0", "'0F0 0B0' has trailing characters"},
      {"0REDUCE_GRAD1", "'0REDUCE_GRAD1' has a micro-batch, where there is none"},
      {"0SEND_F", "'0SEND_F' has no micro-batch"},
      {"0F99999999999999999999", "has a number that is too large"},
      {"4294967296F0", "has a number that is too large"},
      {"0STEP", "'0STEP' has no known action"},
      {"\"0F1\"", "has no stage in front"},
  };
  for (const auto& [cell, reason] : cases) {
    const std::string text = std::string("0F0,") + cell + ",0B0\n1F0,1B0\n";
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("x.csv: row 1, cell 2: "), HasSubstr(reason))) << cell;
  }
}

TEST(ScheduleCsv, AllBadCellsAtOnce) {
  const std::string all = refusal(contents(kFolder + "bad-tokens.csv"));
  for (const char* reason : {"row 1, cell 2: 'F1'", "row 1, cell 3: '0Q1'", "row 1, cell 4: '0F1junk'",
                             "row 1, cell 5: '-1F0'", "row 1, cell 6: '0F'", "row 1, cell 7: '0B 0'"}) {
    EXPECT_THAT(all, HasSubstr(reason));
  }
  std::string many = "0F0";
  for (int i = 0; i < 30; ++i) many += ",junk";
  EXPECT_THAT(refusal(many), HasSubstr("x.csv: and 10 more"));
}

TEST(ScheduleCsv, Refusals) {
  EXPECT_THAT(refusal(""), HasSubstr("x.csv: has no F, B, I or W"));
  EXPECT_THAT(refusal("\n\n"), HasSubstr("has no F, B, I or W"));
  EXPECT_THAT(refusal("0F0,,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"),
              HasSubstr("x.csv: row 1, cell 2 is blank: only files without transfers have idle cells"));
  for (const auto& [path, reason] :
       {std::pair{kFolder + "absent.csv", "No such file or directory"}, std::pair{kFolder, "Is a directory"}}) {
    try {
      read_schedule_csv(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), path + ": cannot be read: " + reason);
    }
  }
}

TEST(ScheduleCsv, DialectOf2024) {
  const auto read = parse_schedule_csv("0F0,0F1,0BW0,0B1,0W1\n", "old.csv");
  EXPECT_THAT(cells(read.schedule.rows[0]), ElementsAre("0F0", "0F1", "0B0", "0I1", "0W1"));
  EXPECT_THAT(read.notes, ElementsAre("old.csv: read as the dialect of 2024: B is the input gradient, BW the whole "
                                      "backward"));
  // A file whose every backward is split says BW nowhere; asked for, it reads the same way.
  EXPECT_THAT(cells(parse_schedule_csv("0F0,0B0,0W0", "old.csv", CsvDialect::of_2024).schedule.rows[0]),
              ElementsAre("0F0", "0I0", "0W0"));
  EXPECT_THAT(cells(parse_schedule_csv("0F0,0B0,0W0", "old.csv").schedule.rows[0]), ElementsAre("0F0", "0B0", "0W0"));
  EXPECT_THAT(refusal("0F0,0F1,0BW0,0I1,0W1"), HasSubstr("'0I1' stands in a file of the 2024 dialect"));
  EXPECT_THAT(refusal("0F0,0BW0", CsvDialect::current), HasSubstr("'0BW0' has no known action"));
}

TEST(ScheduleCsv, StepIsLeftOut) {
  EXPECT_EQ(to_csv({"x", 1, 1, {{{ActionKind::forward, 0, 0}, {ActionKind::backward, 0, 0}, {ActionKind::step, -1}}}}),
            "0F0,0B0\n");
}

}  // namespace
}  // namespace cuboid
