// Which tokens of every sequence a rank has when sequences are split over ranks (context parallelism): one or
// two pieces of equal length. Rows of a microbatch on such a rank are in order of piece, sequence and
// position in the piece, so that a piece is a contiguous range of rows whose positions have one offset.
#ifndef PTB_STRATEGIES_SLICES_H
#define PTB_STRATEGIES_SLICES_H

#include <stddef.h>
#include <stdint.h>

enum { PTB_PIECES_MAX = 2 };

typedef struct {
    size_t pieces;                  // 0: whole sequences
    size_t length;                  // tokens of a piece
    int64_t offset[PTB_PIECES_MAX]; // position of a piece's first token
} ptb_slices;

#endif
