/* tree.h - routes of aggregation trees. Stateless: derived from the image. */
#ifndef CLUSIM_TREE_H
#define CLUSIM_TREE_H

#include "state.h"

static inline const clusim_vertex *tree_vertex(const clusim_sim *s, vertex_id vertex) {
    return &s->model->image.vertices[vertex.i];
}

/* True if a packet of an aggregation has reached the end of its path. */
static inline bool tree_at_end(const clusim_sim *s, const packet *p) {
    const clusim_image *im = &s->model->image;
    const clusim_vertex *v = tree_vertex(s, p->vertex);
    uint32_t path = p->kind == CLUSIM_KIND_AGG_UP ? v->path_up : v->path_down;
    return p->path_pos == im->path_off[path + 1];
}

/* The first wire of a member's way up, which its window is about. */
static inline wire_id tree_first_wire(const clusim_sim *s, vertex_id vertex) {
    const clusim_image *im = &s->model->image;
    return ID(wire, im->path_wires[im->path_off[tree_vertex(s, vertex)->path_up]]);
}

/* First wire of the way down from the vertex where a result ends its path. */
static inline wire_id tree_onward(const clusim_sim *s, const packet *p) {
    const clusim_image *im = &s->model->image;
    vertex_id child = ID(vertex, tree_vertex(s, p->vertex)->child_lo);
    return ID(wire, im->path_wires[im->path_off[tree_vertex(s, child)->path_down]]);
}

#endif
