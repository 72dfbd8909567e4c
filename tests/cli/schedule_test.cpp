// cuboid schedule from outside: known makespans, refusals that say why, and files that go both ways.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_cuboid.h"

namespace cuboid::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kFiles = CUBOID_TEST_DATA "/cases/sched/";

json described(Words words) {
  words.insert(words.begin(), "schedule");
  words.insert(words.end(), {"--format", "json"});
  const Outcome outcome = run_cuboid(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return json::parse(outcome.out);
}

TEST(ScheduleCommand, ReadsAndTimesFiles) {
  const json gpipe = described({"--in", kFiles + "ok-gpipe-pp2-mb3.csv"});
  EXPECT_EQ(gpipe["makespan"], 12);
  EXPECT_EQ(gpipe["idle"], json({3, 3}));
  EXPECT_EQ(gpipe["peak_activations"], json({3, 3}));
  const json one = described({"--schedule", "file:" + kFiles + "ok-1f1b-pp4-mb8.csv"});
  EXPECT_EQ(one["makespan"], 33);
  EXPECT_EQ(one["idle"], json({9, 9, 9, 9}));
  EXPECT_EQ(one["peak_activations"], json({4, 3, 2, 1}));
  const json turn = described({"--in", kFiles + "ok-vshape-pp2-4stages-mb2.csv"});
  EXPECT_EQ(turn["stages"], 4);
  EXPECT_EQ(turn["ranks"], 2);
  EXPECT_EQ(turn["makespan"], 16);
}

// GPipe and 1F1B idle (p-1)(F+B) a rank; here F = 2, B = 5.
TEST(ScheduleCommand, GeneratesWithTheCostsGiven) {
  for (const char* name : {"gpipe", "1f1b"}) {
    const json made = described({"--schedule", name, "--pp", "3", "--micro-batches", "7", "--costs", "f=2,b=5"});
    EXPECT_EQ(made["makespan"], (7 + 2) * 7) << name;
    EXPECT_EQ(made["idle"], json({14, 14, 14})) << name;
    EXPECT_EQ(made["actions"][1].size(), 14U) << name;
  }
  EXPECT_GT(described({"--costs", "p2p=1"})["makespan"], described({})["makespan"]);
  // B is I + W: what is not given follows. One rank works without a pause.
  const auto makespan = [](const char* name, const char* costs) {
    return described({"--schedule", name, "--pp", "1", "--micro-batches", "5", "--costs", costs})["makespan"];
  };
  EXPECT_EQ(makespan("1f1b", "f=1,i=3,w=4"), 5 * 8);
  EXPECT_EQ(makespan("zb-h1", "f=1,b=5"), 5 * 6);
  EXPECT_EQ(makespan("zb-h1", "f=1,b=5,w=1"), 5 * 6);
  EXPECT_EQ(makespan("zb-h1", "f=1,b=9,i=3,w=4"), 5 * 8);  // a B may cost more, or less, than its parts
}

TEST(ScheduleCommand, WhatItWritesItReads) {
  const auto folder = fresh_folder("schedules");
  for (const Words& options : std::vector<Words>{{"--schedule", "1f1b"},
                                                 {"--schedule", "zb-h1", "--comms"},
                                                 {"--schedule", "interleaved-1f1b", "--virtual-stages", "3"}}) {
    Words words = {"schedule", "--pp", "3", "--micro-batches", "5", "--format", "csv"};
    words.insert(words.end(), options.begin(), options.end());
    const Outcome written = run_cuboid(words);
    EXPECT_EQ(written.status, 0) << written.err;
    std::ofstream(folder / "s.csv") << written.out;
    EXPECT_EQ(run_cuboid({"schedule", "--in", folder / "s.csv", "--format", "csv"}).out, written.out);
  }
  EXPECT_THAT(run_cuboid({"schedule", "--pp", "2", "--comms", "--format", "csv"}).out, HasSubstr("1RECV_F0"));
}

// B, W and BW: the input gradient, the weight gradient, the whole. One rank: F, I, W of micro-batch 0, F and B of 1.
TEST(ScheduleCommand, ReadsTheDialectOf2024) {
  const auto folder = fresh_folder("dialects");
  std::ofstream(folder / "bw.csv") << "0F0,0B0,0F1,0BW1,0W0\n";
  const Outcome outcome = run_cuboid({"schedule", "--in", folder / "bw.csv", "--format", "csv"});
  EXPECT_EQ(outcome.out, "0F0,0I0,0F1,0B1,0W0\n");
  EXPECT_THAT(outcome.err, HasSubstr("dialect of 2024"));
  // Without BW the letters do not tell, and are not guessed: refused with the reason, read when the dialect is named.
  std::ofstream(folder / "b-w.csv") << "0F0,0B0,0W0\n";
  const Outcome refused = run_cuboid({"schedule", "--in", folder / "b-w.csv"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("in files of 2024 B meant the input gradient only"));
  EXPECT_EQ(run_cuboid({"schedule", "--in", folder / "b-w.csv", "--dialect", "2024", "--format", "csv"}).out,
            "0F0,0I0,0W0\n");
}

TEST(ScheduleCommand, EveryFaultyCellIsRefused) {
  const auto folder = fresh_folder("cells");
  std::istringstream rows(read_file(kFiles + "bad-tokens.csv"));
  int cells = 0;
  for (std::string row; std::getline(rows, row);) {
    std::istringstream words(row);
    for (std::string cell; std::getline(words, cell, ',');) {
      const auto first = cell.find_first_not_of(" \t\r");
      if (first == std::string::npos) continue;
      std::ofstream(folder / "cell.csv") << cell << "\n";
      EXPECT_EQ(run_cuboid({"schedule", "--in", folder / "cell.csv"}).status, 2) << cell;
      ++cells;
    }
  }
  EXPECT_GT(cells, 3);
}

// ZB-H2 idles (p-1)(F+I-2W) = 0 in each rank's own span with equal times; the barrier puts (p-1)F back.
TEST(ScheduleCommand, TellsWhatTheBarrierCosts) {
  const json h2 = described({"--schedule", "zb-h2", "--pp", "4", "--micro-batches", "12"});
  EXPECT_EQ(h2["idle_in_span"], json({0, 0, 0, 0}));
  EXPECT_EQ(h2["barrier"], 3);
  EXPECT_EQ(h2["makespan"], 12 * 3 + 3);
  EXPECT_EQ(described({"--schedule", "1f1b"})["barrier"], 0);
  EXPECT_THAT(run_cuboid({"schedule", "--schedule", "zb-h2", "--pp", "4", "--micro-batches", "12"}).out,
              HasSubstr("barrier 3"));
}

TEST(ScheduleCommand, Draws) {
  const Outcome text = run_cuboid({"schedule", "--pp", "2", "--micro-batches", "3"});
  EXPECT_THAT(text.out, HasSubstr("rank 1"));
  EXPECT_THAT(text.out, HasSubstr("bubble 25.0 %"));  // (p-1)/(m+p-1)
  EXPECT_THAT(run_cuboid({"schedule", "--format", "svg"}).out, ::testing::StartsWith("<svg"));
  EXPECT_THAT(run_cuboid({"schedule", "--pp", "2", "--micro-batches", "1", "--comms"}).out,
              HasSubstr("rank 0: 0F0 0SEND_F0 0RECV_B0 0B0\nrank 1: 1RECV_F0 1F0 1B0 1SEND_B0\n"));
}

TEST(ScheduleCommand, AutoIsNoWorseThanTheBestNamedOneAndSaysSo) {
  const Words size = {"--pp", "4", "--micro-batches", "6", "--costs", "f=3,b=5,i=2,w=3"};
  const auto with = [&](const char* name) {
    Words words = size;
    words.insert(words.end(), {"--schedule", name});
    return described(words)["makespan"].get<double>();
  };
  for (const char* named : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) EXPECT_LE(with("auto"), with(named)) << named;
  EXPECT_THAT(run_cuboid({"schedule", "--schedule", "auto"}).err, HasSubstr("lower bound"));
  const json tight = described({"--schedule", "auto", "--max-activations", "3"});  // fewer than any named one holds
  for (const json& peak : tight["peak_activations"]) EXPECT_LE(peak, 3);
  EXPECT_EQ(tight["auto"]["best_named"], nullptr);
  const json capped = described({"--schedule", "auto", "--max-activations", "4"});
  EXPECT_LE(capped["auto"]["lower_bound"], capped["makespan"]);
  EXPECT_LE(capped["makespan"], capped["auto"]["best_named_makespan"]);
}

TEST(ScheduleCommand, RefusesAndSaysWhy) {
  const auto refused = [](Words words, const std::string& why) {
    words.insert(words.begin(), "schedule");
    const Outcome outcome = run_cuboid(words);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(why));
  };
  refused({"--in", kFiles + "bad-deadlock-order.csv"}, "rank 0 waits at 0B0, rank 1 at 1F1");
  refused({"--in", kFiles + "bad-missing-backward.csv"}, "1B1");
  refused({"--in", kFiles + "bad-full-b-and-w.csv"}, "already contains W");
  refused({"--in", kFiles + "ok-gpipe-pp2-mb3.csv", "--pp", "2"}, "--pp 2: the file");
  refused({"--in", kFiles + "ok-gpipe-pp2-mb3.csv", "--schedule", "1f1b"}, "--schedule 1f1b: the schedule is that of");
  refused({"--dialect", "2024"}, "--dialect: only a file has one");
  refused({"--in", "/no/such.csv"}, "/no/such.csv");
  refused({"--schedule", "1f1bb"}, "did you mean 1f1b?");
  refused({"--costs", "f=1,q=2"}, "'q=2' is not f=TIME");
  refused({"--costs", "f=-1"}, "'f=-1': a time is not negative");
  refused({"--max-activations", "2"}, "rank 0: holds activations of 4 micro-batches, 2 are allowed");
  refused({"--format", "png"}, "--format png: not one of text, csv, svg, json");
}

}  // namespace
}  // namespace cuboid::test
